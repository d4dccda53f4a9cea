"""A residual connection and the norm of its sum, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.types import Device

from fusedops.arguments import given
from fusedops.torch.internals import is_symbol
from fusedops.torch.nn.dropout import add_dropped
from fusedops.torch.nn.layer import REFUSED, FusedLayer, are_alike, joined, options
from fusedops.torch.nn.normalization import LayerNorm, RMSNorm


def add_norm(
    norm: RMSNorm | LayerNorm, x: Tensor, residual: Tensor, of_sum: Callable[[Tensor], Tensor], dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(norm(s), s) with s = dropout(x) + residual, in one pass if both have one dtype.

    `of_sum` computes the norm of s if the kernel does not.
    """
    if norm.is_plain(x) and are_alike(x, residual):
        try:
            return norm.plain_add(x, residual, dropout)
        except REFUSED:
            pass  # the code below finds the reason
    mixed = isinstance(x, Tensor) and isinstance(residual, Tensor) and x.dtype is not residual.dtype
    if not mixed and norm.why_not(x) is None:
        return norm.fused_add(x, residual, dropout)
    s = add_dropped(x, residual, dropout)
    return of_sum(s), s


class _AddNorm(FusedLayer):
    dropout: float = 0.0

    def _set_dropout(self, dropout: float) -> None:
        if not 0 <= dropout < 1:
            layer = f"fusedops.torch.nn.{type(self).__name__}"
            raise ValueError(f"{layer}: dropout must be a probability in [0, 1); got {dropout!r}")
        if dropout:
            self.dropout = float(dropout)

    def extra_repr(self) -> str:
        return joined(super().extra_repr(), options(self, dropout=0.0))

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        of_sum: Any = super().forward
        rate = self.dropout if self.training else 0.0
        if is_symbol(x):
            return self.otherwise(lambda x, residual: add_norm(self, x, residual, of_sum, rate), x, residual)
        return add_norm(self, x, residual, of_sum, rate)


class AddRMSNorm(_AddNorm, RMSNorm):  # type: ignore[misc]  # its forward takes two tensors
    """(rms_norm(s), s) with s = x + residual, or s = dropout(x) + residual: `fusedops.torch.add_rms_norm`.

    The other arguments, the parameters and the state dict are those of `RMSNorm`.

    Args:
        dropout: the probability with which an element of x is dropped in training, from 0 to below 1.

    Call arguments:
        x, residual: two tensors of one shape, [..., *normalized_shape].

    Returns:
        Two tensors of x's shape, of the dtype of x + residual. If x and residual have one dtype, s is rounded to it and
        then normalized, in one pass. Otherwise torch adds them.

    Raises:
        ValueError: dropout is out of range.

    torch's own code handles the dtypes, devices and layouts that it handles in `RMSNorm`. `Dropout` says how seeds are
    drawn.

    Example:
        >>> y, s = fnn.AddRMSNorm(2)(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]]))
        >>> y.detach(), s.detach()
        (tensor([[0.8485, 1.1314]]), tensor([[3., 4.]]))
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        weight_offset: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(**given(locals(), "dropout"))
        self._set_dropout(dropout)


class AddLayerNorm(_AddNorm, LayerNorm):  # type: ignore[misc]  # its forward takes two tensors
    """(layer_norm(s), s) with s = x + residual, or s = dropout(x) + residual: `fusedops.torch.add_layer_norm`.

    The other arguments, the parameters and the state dict are those of `LayerNorm`. All else is as in `AddRMSNorm`.

    Example:
        >>> y, s = fnn.AddLayerNorm(2)(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]]))
        >>> y.detach(), s.detach()
        (tensor([[-1.0000,  1.0000]]), tensor([[3., 4.]]))
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(**given(locals(), "dropout"))
        self._set_dropout(dropout)
