"""Softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import fusedops.torch as fo
from fusedops.torch.nn.layer import FusedLayer, joined, options, unfused_pass, widened


class Softmax(FusedLayer, nn.Softmax):
    """exp(scale·input) / Σ exp(scale·input), over one dimension, with a mask: `fusedops.torch.softmax`.

    Args:
        dim: as in `torch.nn.Softmax`.
        scale: a number.
        causal: keeps column j of row i where j ≤ i + columns − rows, on the last two dimensions.

    Call arguments:
        input: [..., columns], float64, float32, float16 or bfloat16.
        mask: bool, broadcastable to input; True keeps an element. A row in which every element is masked is all zeros.

    Returns:
        A tensor of the input's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Raises:
        RuntimeError: an argument has the wrong shape or dtype.

    torch's own code computes any dimension but the last, a `dim` of None, and other dtypes, devices and layouts.

    Example:
        >>> fnn.Softmax(-1, causal=True)(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([[1.0000, 0.0000],
                [0.2689, 0.7311]])
        >>> fnn.Softmax(0).why_not(torch.ones(2, 2))
        'dim 0 is not the last'

    Source: Bridle, "Probabilistic interpretation of feedforward classification network outputs", 1990.
    """

    own_options = ("scale", "causal")
    scale: float = 1.0
    causal: bool = False

    def __init__(self, dim: int | None = None, *, scale: float = 1.0, causal: bool = False) -> None:
        super().__init__(dim)
        self.scale = scale
        self.causal = causal

    def why_not(self, *inputs: Any) -> str | None:
        x = inputs[0] if inputs else None
        return unfused_pass(x) or self._unfused_dim(x.dim() if isinstance(x, Tensor) else None)

    def _unfused_dim(self, rank: int | None) -> str | None:
        """The reason why `dim` is not supported for this rank; None as a rank stands for any."""
        dim = self.dim
        if dim is None:
            return "dim is None"
        if rank == 0:
            return "the input has no dimension"
        if dim == -1 or dim + 1 == rank or (rank is None and dim >= 0):
            return None
        return f"dim {dim} is not the last"

    def extra_repr(self) -> str:
        return joined(super().extra_repr(), options(self, scale=1.0, causal=False))

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.why_not(input):
            return self.otherwise(self._of_torch, input, mask)
        return fo.softmax(input, scale=self.scale, mask=mask, causal=self.causal)

    def _of_torch(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.scale != 1.0:
            return self._masked(widened(x) * self.scale, mask).to(x.dtype)
        return self._masked(x, mask)

    def _masked(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.causal:
            rows, columns = x.shape[-2:]
            visible = torch.ones(rows, columns, dtype=torch.bool, device=x.device).tril(columns - rows)
            mask = visible if mask is None else mask & visible
        if mask is None:
            return super().forward(x)
        y = super().forward(x.masked_fill(~mask, -torch.inf))
        return y.masked_fill(~mask, 0.0)  # a fully masked row of torch's is NaN
