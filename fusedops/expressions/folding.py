"""Constant folding, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

_FUNCTIONS: dict[str, Callable[..., float]] = {
    "neg": lambda a: -a,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": math.pow,
    "lt": lambda a, b: float(a < b),
    "le": lambda a, b: float(a <= b),
    "gt": lambda a, b: float(a > b),
    "ge": lambda a, b: float(a >= b),
    "eq": lambda a, b: float(a == b),
    "ne": lambda a, b: float(a != b),
    "min": min,
    "max": max,
    "exp": math.exp,
    "log": math.log,
    "log1p": math.log1p,
    "expm1": math.expm1,
    "sqrt": math.sqrt,
    "rsqrt": lambda a: 1 / math.sqrt(a),
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)) if a > 0 else math.exp(a) / (1 + math.exp(a)),
    "erf": math.erf,
    "cdf": lambda a: math.erfc(-a / math.sqrt(2)) / 2,
    "pdf": lambda a: math.exp(-a * a / 2) / math.sqrt(2 * math.pi),
    "abs": abs,
    "floor": lambda a: float(math.floor(a)),
    "sign": lambda a: float((a > 0) - (a < 0)),
}


def fold(op: str, *values: float) -> float | None:
    """The result; None if the kernel must decide it, since a value is not finite. Negation folds everything."""
    if op == "neg":
        return -values[0]
    if op not in _FUNCTIONS or not all(map(math.isfinite, values)):
        return None
    try:
        result = _FUNCTIONS[op](*values)
    except (ArithmeticError, ValueError):
        return None
    return result if math.isfinite(result) else None
