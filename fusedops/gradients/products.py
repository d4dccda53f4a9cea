"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusedops.gradients.registry import Tensor, gradient


@gradient("matmul", saves=("a", "b"))
def _matmul(f: Any, c: Any, dy: Tensor) -> Mapping[str, Any]:
    """Of C = A @ B, with A = op(a), B = op(b): dA = dC @ Bᵀ and dB = Aᵀ @ dC, each transposed back if op does."""
    ta, tb = c.transpose_a, c.transpose_b
    one_b = f.rank(c.b) == 2  # for all the matrices of a

    def da() -> Tensor:
        if not ta:
            return f.matmul(dy, c.b, transpose_b=not tb)
        if one_b and f.rank(dy) != 2:
            return f.transpose(f.matmul(dy, c.b, transpose_b=not tb))
        return f.matmul(c.b, dy, transpose_a=tb, transpose_b=True)

    def db() -> Tensor:
        a, dc, a_transposed = c.a, dy, ta
        if one_b and f.rank(dy) != 2:  # the sum over the leading dimensions is part of the product
            a, dc, a_transposed = f.reshape_rows(f.transpose(a) if ta else a), f.reshape_rows(dy), False
        if tb:
            return f.matmul(dc, a, transpose_a=True, transpose_b=a_transposed)
        return f.matmul(a, dc, transpose_a=not a_transposed)

    return {"a": da, "b": db}
