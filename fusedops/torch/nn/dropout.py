"""Dropout, alone and before a residual connection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import fusedops.torch as fo
from fusedops.torch import internals
from fusedops.torch.nn.layer import FusedLayer, have_equal_types, is_plain, unfused_pass

_FEWEST_ON_GPU = 2**24  # below, the launch that draws a seed takes longer than torch's mask


class Dropout(FusedLayer, nn.Dropout):
    """input / (1 − p) where an element is kept, else 0, in training: `fusedops.torch.dropout`, which stores no mask.

    The arguments are those of `torch.nn.Dropout`. torch's generator draws the seed, so torch.manual_seed repeats a run
    and torch.utils.checkpoint drops the same elements again. For a given seed torch drops other elements.

    Call arguments:
        input: float64, float32, float16 or bfloat16, any shape.

    Returns:
        A tensor of the input's shape and dtype; in evaluation the input itself.

    torch's own code computes `inplace`, p of 0 and of 1, other dtypes, devices and layouts, images in channels_last,
    which the kernel would copy, and, on a GPU, fewer than sixteen million elements, for which it is as fast.

    Example:
        >>> fnn.Dropout(0.1).eval()(torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
        >>> fnn.Dropout(0.1, inplace=True).why_not()
        'inplace is set'

    Source: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014.
    """

    def why_not(self, *inputs: Any) -> str | None:
        if self.inplace:
            return "inplace is set"
        return unfused_rate(self.p) or (unfused_pass(inputs[0]) or _unfused_size(inputs[0]) if inputs else None)

    def forward(self, input: Tensor) -> Tensor:
        if is_plain(input) and _too_few(input):
            return functional.dropout(input, self.p, self.training, self.inplace)
        if not self.training or self.why_not(input):
            return self.otherwise(super().forward, input)
        return fo.dropout(input, self.p)


class DropoutAdd(FusedLayer, nn.Dropout):
    """residual + dropout(x) in training, residual + x in evaluation: `fusedops.torch.dropout_add`.

    Args:
        p: the probability with which an element of x is dropped, from 0 to 1.

    Call arguments:
        x, residual: two tensors of one shape and dtype: float64, float32, float16 or bfloat16.

    Returns:
        A tensor of their shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    torch's own code computes tensors of two shapes or dtypes, p of 1, and other dtypes, devices and layouts. `Dropout`
    says how seeds are drawn.

    Example:
        >>> fnn.DropoutAdd(0.1).eval()(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
        tensor([4., 6.])
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)

    def extra_repr(self) -> str:
        return f"p={self.p}"

    def why_not(self, *inputs: Any) -> str | None:
        return unfused_rate(self.p) or (unfused_pass(inputs[0]) if inputs else None)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:  # type: ignore[override]
        return self.otherwise(self._sum, x, residual)

    def _sum(self, x: Tensor, residual: Tensor) -> Tensor:
        return add_dropped(x, residual, self.p if self.training else 0.0)


def unfused_rate(rate: Any) -> str | None:
    """The reason why the kernel does not support this rate, or None."""
    if not isinstance(rate, float | int):
        return "p is no number"
    if rate == 0:
        return "p is 0: it drops nothing"
    return None if 0 < rate < 1 else f"p is {rate:g}: it drops everything"


def _unfused_size(x: Tensor) -> str | None:
    """The reason why torch's dropout is faster for x, or None."""
    if x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last):
        return "the input is in channels_last, which torch keeps"
    return _too_few(x)


def dropped(x: Tensor, rate: float) -> Tensor:
    """dropout(x), in training."""
    if unfused_rate(rate) or unfused_pass(x) or _too_few(x):
        return functional.dropout(x, rate)
    return fo.dropout(x, rate)


def add_dropped(x: Tensor, residual: Tensor, rate: float) -> Tensor:
    """residual + dropout(x), in one pass if shapes and dtypes are equal; otherwise torch adds them."""
    if rate == 0:
        return residual + x
    if unfused_rate(rate) or unfused_pass(x) or not have_equal_types(x, residual):
        return residual + dropped(x, rate)
    return fo.dropout_add(x, residual, rate)


def _too_few(x: Tensor) -> str | None:
    """The reason why torch's own code is as fast, or None. In eager code the seed takes one more launch."""
    if not x.is_cuda or torch.compiler.is_compiling() or internals.shape(x).numel() >= _FEWEST_ON_GPU:
        return None
    return "on a GPU, torch's own kernel is as fast for so few elements"
