"""Plain operators that need no framework, only Python's operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Tensor = Any


def of_sum(norm: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The norm of a sum, and the sum."""

    def add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return norm(total, weight), total

    return add_norm


def rotated(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor, seq_dim: int) -> tuple[Tensor, Tensor]:
    """The halves of the features, rotated."""
    assert seq_dim == -3  # layout [batch, positions, heads, features]
    cos, sin = cos[:, None], sin[:, None]
    return first * cos - second * sin, second * cos + first * sin
