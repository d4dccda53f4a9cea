"""Normalizations of the last dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.types import Device

import fusedops.torch as fo
from fusedops.torch.nn.layer import (
    REFUSED,
    FusedLayer,
    as_original,
    is_plain,
    joined,
    options,
    parameter,
    unfused_input,
    unfused_norm,
    widened,
)

_EPS = torch.finfo(torch.float32).eps  # also for 16 bits, computed in float32
_EPS_OF_DOUBLE = torch.finfo(torch.float64).eps


def default_eps(x: Any) -> float:
    """The default eps of torch.rms_norm: the machine epsilon of the compute dtype."""
    return _EPS_OF_DOUBLE if isinstance(x, Tensor) and x.dtype is torch.float64 else _EPS


class _Norm(FusedLayer):
    normalized_shape: tuple[int, ...]
    elementwise_affine: bool
    weight: nn.Parameter  # or None, which torch's own annotation leaves out

    def is_plain(self, x: Any) -> bool:
        """True if the operator may be called at once with x, as in `layer.is_plain`."""
        if not (is_plain(x) and self.elementwise_affine and len(self.normalized_shape) == 1):
            return False
        return parameter(self, "weight").dtype is x.dtype

    def why_not(self, *inputs: Any) -> str | None:
        if not inputs:
            return None
        x = inputs[0]
        return unfused_input(x) or (unfused_norm(x, self.weight) if isinstance(x, Tensor) else None)

    def _rows(self, x: Any, name: str = "x") -> Any:
        """x with the normalized dimensions flattened into one."""
        shape = self.normalized_shape
        if len(shape) == 1 and self.elementwise_affine:
            return x  # the operator checks it against the weight
        if not isinstance(x, Tensor):
            return x
        if x.shape[-len(shape) :] != shape:
            raise RuntimeError(
                f"fusedops.torch.nn.{type(self).__name__}: the shape of {name} must end with normalized_shape, "
                f"{list(shape)}; got {list(x.shape)}"
            )
        return x.flatten(-len(shape))

    def _row(self, parameter: Tensor | None) -> Tensor | None:
        return parameter if parameter is None or len(self.normalized_shape) == 1 else parameter.flatten()


class RMSNorm(_Norm, nn.RMSNorm):
    """x · rsqrt(mean(x²) + eps) · (weight + weight_offset), over the last dimensions: `fusedops.torch.rms_norm`.

    The other arguments, the parameters and the state dict are those of `torch.nn.RMSNorm`.

    Args:
        eps: None means the machine epsilon of the compute dtype, as in torch.
        weight_offset: added to the weight in the compute dtype; 1 for weights that are stored as the difference from 1,
            as in Gemma. The weight is initialized to 1 - weight_offset.

    Call arguments:
        x: [..., *normalized_shape], float64, float32, float16 or bfloat16, of the weight's dtype; or 16 bits beside a
            float32 weight.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed and summed in float32 and rounded once.

    Raises:
        RuntimeError: x has the wrong shape.

    torch's own code handles all other dtypes, devices and layouts.

    Example:
        >>> fnn.RMSNorm(2)(torch.tensor([[3.0, 4.0]])).detach()
        tensor([[0.8485, 1.1314]])

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

    own_options = ("weight_offset",)
    weight_offset: float = 0.0

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        weight_offset: float = 0.0,
    ) -> None:
        shape: Any = normalized_shape  # any sequence, which torch's own annotation leaves out
        super().__init__(shape, eps, elementwise_affine, device, dtype)
        if weight_offset:
            self.weight_offset = weight_offset
            self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.elementwise_affine:
            nn.init.constant_(self.weight, 1.0 - self.weight_offset)

    def extra_repr(self) -> str:
        return joined(super().extra_repr(), options(self, weight_offset=0.0))

    def forward(self, x: Tensor) -> Tensor:
        if self.is_plain(x):
            try:
                return fo.rms_norm(x, parameter(self, "weight"), eps=self._eps(x), weight_offset=self.weight_offset)
            except REFUSED:
                pass  # the code below finds the reason
        if self.why_not(x):
            return self.otherwise(self._of_torch, x)
        try:
            rows, weight = self._rows(x), self._row(self.weight)
            y = fo.rms_norm(rows, weight, eps=self._eps(x), weight_offset=self.weight_offset)
        except RuntimeError as error:
            as_original(error, super().forward, x)
            raise
        return y if rows is x else y.view(x.shape)

    def fused_add(self, x: Tensor, residual: Tensor, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
        """(self(s), s) with s = dropout(x) + residual, in one pass. No hooks run, and the kernel must support x."""
        try:
            rows, others, weight = self._rows(x), self._rows(residual, "residual"), self._row(self.weight)
            eps, offset = self._eps(x), self.weight_offset
            y, s = fo.add_rms_norm(rows, others, weight, eps=eps, weight_offset=offset, dropout=dropout)
        except RuntimeError as error:
            as_original(error, super().forward, x)
            raise
        return (y, s) if rows is x else (y.view(x.shape), s.view(x.shape))

    def plain_add(self, x: Tensor, residual: Tensor, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
        """fused_add for an x that `is_plain`."""
        weight, eps, offset = parameter(self, "weight"), self._eps(x), self.weight_offset
        return fo.add_rms_norm(x, residual, weight, eps=eps, weight_offset=offset, dropout=dropout)

    def _eps(self, x: Any) -> float:
        return default_eps(x) if self.eps is None else self.eps

    def _of_torch(self, x: Tensor) -> Tensor:
        if not self.weight_offset or self.weight is None:
            return super().forward(x)
        weight = widened(self.weight) + self.weight_offset
        return nn.functional.rms_norm(widened(x), self.normalized_shape, weight, self.eps).to(x.dtype)


class LayerNorm(_Norm, nn.LayerNorm):
    """(x − mean) · rsqrt(var + eps) · weight + bias, over the last dimensions: `fusedops.torch.layer_norm`.

    The arguments, the parameters and the state dict are those of `torch.nn.LayerNorm`. The variance is computed from
    the deviations from the mean.

    Call arguments:
        input: [..., *normalized_shape], float64, float32, float16 or bfloat16, of the parameters' dtype; or 16 bits
            beside float32 parameters.

    Returns:
        A tensor of the input's shape and dtype. 16-bit inputs are computed and summed in float32 and rounded once.

    Raises:
        RuntimeError: the input has the wrong shape.

    torch's own code handles all other dtypes, devices and layouts.

    Example:
        >>> fnn.LayerNorm(3)(torch.tensor([[1.0, 2.0, 3.0]])).detach()
        tensor([[-1.2247,  0.0000,  1.2247]])

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """

    def extra_repr(self) -> str:
        shown = super().extra_repr()
        has_no_bias = self.elementwise_affine and self.bias is None
        return joined(shown, "bias=False" if has_no_bias and "bias=" not in shown else "")  # for torch 2.10

    def forward(self, input: Tensor) -> Tensor:
        if self.is_plain(input):
            try:
                return fo.layer_norm(input, parameter(self, "weight"), parameter(self, "bias"), eps=self.eps)
            except REFUSED:
                pass  # the code below finds the reason
        if self.why_not(input):
            return self.otherwise(super().forward, input)
        try:
            rows = self._rows(input)
            y = fo.layer_norm(rows, self._row(self.weight), self._row(self.bias), eps=self.eps)
        except RuntimeError as error:
            as_original(error, super().forward, input)
            raise
        return y if rows is input else y.view(input.shape)

    def fused_add(self, x: Tensor, residual: Tensor, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
        """(self(s), s) with s = dropout(x) + residual, in one pass. No hooks run, and the kernel must support x."""
        try:
            rows, others = self._rows(x), self._rows(residual, "residual")
            weight, bias = self._row(self.weight), self._row(self.bias)
            y, s = fo.add_layer_norm(rows, others, weight, bias, eps=self.eps, dropout=dropout)
        except RuntimeError as error:
            as_original(error, super().forward, x)
            raise
        return (y, s) if rows is x else (y.view(x.shape), s.view(x.shape))

    def plain_add(self, x: Tensor, residual: Tensor, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
        """fused_add for an x that `is_plain`."""
        weight, bias = parameter(self, "weight"), parameter(self, "bias")
        return fo.add_layer_norm(x, residual, weight, bias, eps=self.eps, dropout=dropout)
