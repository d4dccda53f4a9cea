"""A residual connection and the normalization of its sum, in one pass."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fusedops.torch.internals import is_symbol
from fusedops.torch.nn.normalization import LayerNorm, RMSNorm


def add_norm(
    norm: RMSNorm | LayerNorm, x: Tensor, residual: Tensor, of_sum: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """(norm(s), s) with s = x + residual, in one pass if both have one dtype, which autocast may change.

    `of_sum` computes the norm of s if the kernel does not.
    """
    mixed = isinstance(x, Tensor) and isinstance(residual, Tensor) and x.dtype is not residual.dtype
    if not mixed and norm.why_not(x) is None:
        return norm.fused_add(x, residual)
    s = x + residual
    return of_sum(s), s


class AddRMSNorm(RMSNorm):
    """(rms_norm(s), s) with s = x + residual: `fusedops.torch.add_rms_norm`.

    The arguments, the parameters and the state dict are those of `RMSNorm`.

    Call arguments:
        x, residual: two tensors of one shape, [..., *normalized_shape].

    Returns:
        Two tensors of x's shape, of the dtype of x + residual. If x and residual have one dtype, s is rounded to it and
        then normalized, in one pass. Otherwise torch adds them.

    torch's own code handles the dtypes, devices and layouts that it handles in `RMSNorm`.

    Example:
        >>> y, s = fnn.AddRMSNorm(2)(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]]))
        >>> y.detach(), s.detach()
        (tensor([[0.8485, 1.1314]]), tensor([[3., 4.]]))
    """

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        of_sum = super().forward
        if is_symbol(x):
            return self.otherwise(lambda x, residual: add_norm(self, x, residual, of_sum), x, residual)
        return add_norm(self, x, residual, of_sum)


class AddLayerNorm(LayerNorm):
    """(layer_norm(s), s) with s = x + residual: `fusedops.torch.add_layer_norm`.

    The arguments, the parameters and the state dict are those of `LayerNorm`.

    Call arguments:
        x, residual: two tensors of one shape, [..., *normalized_shape].

    Returns:
        Two tensors of x's shape, of the dtype of x + residual. If x and residual have one dtype, s is rounded to it and
        then normalized, in one pass. Otherwise torch adds them.

    torch's own code handles the dtypes, devices and layouts that it handles in `LayerNorm`.

    Example:
        >>> y, s = fnn.AddLayerNorm(2)(torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 2.0]]))
        >>> y.detach(), s.detach()
        (tensor([[-1.0000,  1.0000]]), tensor([[3., 4.]]))
    """

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        of_sum = super().forward
        if is_symbol(x):
            return self.otherwise(lambda x, residual: add_norm(self, x, residual, of_sum), x, residual)
        return add_norm(self, x, residual, of_sum)
