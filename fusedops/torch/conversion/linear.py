"""torch.nn.Linear, where our product is faster than torch's or has `main_grad`.

Ours is faster if in_features or out_features is no multiple of 8, as in a head of 50 257 classes: 16-bit rows are then
misaligned, and cuBLAS has only slow kernels for them. With a `main_grad`, our product adds the weight's gradient to it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fusedops.torch import nn
from fusedops.torch.nn.linear import product_dtype
from fusedops.torch.nn.main_grad import has_main_grad, is_added

_FEWEST_WEIGHTS = 2**20  # both products of smaller layers take little time
_FEWEST_ROWS = 8
_SERVED = "torch's own product serves as well"


def is_served(layer: torch.nn.Linear) -> bool:
    """True if torch's own product serves as well."""
    return _is_aligned(layer) and not has_main_grad(layer.weight)


def _is_aligned(layer: torch.nn.Linear) -> bool:
    inputs, outputs = layer.in_features, layer.out_features
    return (inputs % 8 == 0 and outputs % 8 == 0) or inputs * outputs < _FEWEST_WEIGHTS


class PlainLinear(nn.Linear):
    is_torchs_linear = True  # for `is_plain_linear`

    @property
    def condition(self) -> str:
        """The condition under which the kernel computes the product, for the report."""
        return "" if has_main_grad(self.weight) else "of 16 bits on a GPU, in code that is not compiled"

    def why_not(self, *inputs: Any) -> str | None:
        if not inputs:
            return "" if is_served(self) else super().why_not()
        x = inputs[0]
        if is_added(self.weight):
            return super().why_not(x)
        if _is_aligned(self):
            return _SERVED
        if not isinstance(x, Tensor):
            return super().why_not(x)
        if torch.compiler.is_compiling():  # the compiler's padded product is faster
            return "torch.compile pads its rows"
        if not x.is_cuda or product_dtype(x).itemsize != 2 or (self.in_features % 8 and _has_few_rows(x)):
            return _SERVED
        return super().why_not(x)

    def forward(self, input: Tensor) -> Tensor:
        # No check of the input in compiled code, so that the graph equals that of torch's layer.
        if torch.compiler.is_compiling() and not is_added(self.weight):
            return functional.linear(input, self.weight, self.bias)
        return super().forward(input)


def _has_few_rows(x: Tensor) -> bool:
    """True if cuBLAS reads a misaligned weight in less time than our kernel copies it."""
    return x.dim() < 2 or x.shape[:-1].numel() < _FEWEST_ROWS
