"""What each operator computes, in operators that torch's, TensorFlow's and NumPy's arrays all have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FACTOR = 1.7

# Operator -> its inputs, in order; `a` has one element, `factor` is a number.
INPUTS = {
    "axpby": ("a", "x", "b"),
    "add": ("x", "y"),
    "scale": ("x", "factor"),
    "relu": ("x",),
    "polynomial_activation": ("x",),
    "matmul": ("a", "b"),
}

# Operator -> the inputs whose gradients are measured.
WANTED = {"axpby": ("a", "x"), "scale": ("x",), "relu": ("x",), "polynomial_activation": ("x",)}


def expressions(relu: Callable[[Any], Any]) -> dict[str, Callable[..., Any]]:
    """What a user writes without fusedops."""
    return {
        "axpby": lambda a, x, b: a * x + b,
        "add": lambda x, y: x + y,
        "scale": lambda x, factor: x * factor,
        "relu": relu,
        "polynomial_activation": lambda x: x * x + x + 1,
    }


# Operator -> the gradient of x, of what is needed of the upstream gradient and the inputs.
SLOPES: dict[str, Callable[..., Any]] = {
    "axpby": lambda dy, a, x, b: a * dy,
    "scale": lambda dy, x, factor: dy * factor,
    "relu": lambda dy, x: dy * (x > 0),
    "polynomial_activation": lambda dy, x: dy * (1 + 2 * x),
}
