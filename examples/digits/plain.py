"""The two operators that neither framework has, in Python's operators, for plain_torch and plain_tf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Tensor = Any


def axpby(a: Tensor, x: Tensor, b: Tensor) -> Tensor:
    return a * x + b


def polynomial_activation(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    *rest, y = coefficients
    for coefficient in reversed(rest):
        y = y * x + coefficient
    return y
