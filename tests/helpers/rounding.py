"""A program in NumPy with error bounds: every value carries the bound of its rounding error.

The unit is half an eps of the compute dtype. An operation multiplies the errors of its operands by its slopes, and adds
its own roundings: the larger number of CUDA's tables of accuracy and the contract of the core's functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusedops.expressions import Definition
from fusedops.expressions.graph import FUSED, OPERATIONS
from tests.helpers.activations import erf, logistic, normal, normal_density
from tests.helpers.specification import Array, pairwise

Value = tuple[Array, Array]  # a value, and the bound of its error

# Per function of x: the function, its slope in x and y, and its roundings.
UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any], int]] = {
    "neg": (np.negative, lambda x, y: 1, 0),
    "exp": (np.exp, lambda x, y: y, 4),
    "log": (np.log, lambda x, y: 1 / x, 2),
    "log1p": (np.log1p, lambda x, y: 1 / (1 + x), 4),
    "expm1": (np.expm1, lambda x, y: y + 1, 6),
    "sqrt": (np.sqrt, lambda x, y: 1 / (2 * y), 2),
    "rsqrt": (lambda x: 1 / np.sqrt(x), lambda x, y: y / (2 * x), 4),
    "sin": (np.sin, lambda x, y: np.cos(x), 4),
    "cos": (np.cos, lambda x, y: np.sin(x), 4),
    "tanh": (np.tanh, lambda x, y: 1 - y * y, 8),
    "sigmoid": (logistic, lambda x, y: y * (1 - y), 8),
    "erf": (erf, lambda x, y: 2 * np.exp(-x * x), 4),
    "abs": (np.abs, lambda x, y: 1, 0),
    "floor": (np.floor, lambda x, y: 0, 0),
    "sign": (np.sign, lambda x, y: 0, 0),
}
COMPARISONS = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
ROWS = (np.sum, np.mean, np.max, np.min)


def evaluated(definition: Definition, arrays: Sequence[Any]) -> list[Value]:
    """The results, computed in the arrays' dtype. None stands for an absent input."""
    dtype = np.result_type(*(a for a in arrays if isinstance(a, np.ndarray | np.generic) and a.dtype.kind == "f"))
    shape = np.broadcast_shapes(*(np.shape(a) for a in arrays if a is not None))
    inputs = [np.broadcast_to(np.asarray(0 if a is None else a, dtype), shape) for a in arrays]
    rows: list[Value] = []
    for stage, code in enumerate(definition.program.stages):
        values: list[Value] = []
        for i in code:
            op = OPERATIONS[i.op]
            if op == "input":
                values.append((inputs[i.a], np.zeros_like(inputs[i.a])))
            elif op == "constant":
                constant = np.asarray(i.value, dtype)
                values.append((constant, np.abs(constant) * (np.double(constant) != i.value)))
            elif op == "reduced":
                values.append(rows[i.a])
            else:
                values.append(operation(op, [values[place] for place in (i.a, i.b, i.c)]))
        for reduction in definition.program.reductions:
            if reduction.stage == stage:
                x, error = (np.broadcast_to(part, shape) for part in values[reduction.value])
                rows.append(row(reduction.kind, x, error))
    results = []
    for result in definition.results:
        shown = (*shape[:-1], 1) if result.of_rows else shape
        y, error = (np.broadcast_to(part, shown) for part in values[result.value])
        like = None if result.like is None else np.shape(arrays[result.like])
        results.append((y, error) if like is None else summed(y, error, like))
    return results


def operation(op: str, operands: list[Value]) -> Value:
    """One operation; surplus operands are ignored."""
    (a, da), (b, db), (c, dc) = operands
    if op in UNARY:
        function, slope, roundings = UNARY[op]
        y = function(a)
        return y, passed(slope(a, y), da) + roundings * np.abs(y)
    if op in COMPARISONS:
        y = COMPARISONS[op](a, b).astype(np.result_type(a, b))
        return y, np.zeros_like(y)
    if op == "where":
        return np.where(a != 0, b, c), np.where(a != 0, db, dc)
    if op in ("min", "max"):
        y = (np.minimum if op == "min" else np.maximum)(a, b)
        larger = np.maximum(da, db)
        return y, np.where(np.isfinite(larger), larger, np.where(y == a, da, db))
    if op in ("add", "sub"):
        y = a + b if op == "add" else a - b
        return y, da + db + np.abs(y)
    if op in FUSED:  # as two operations: a CPU may lack a fused one
        product = operation("mul", operands)
        sides = [(c, dc), product] if op == "fnma" else [product, (c, dc)]
        return operation("add" if op == "fma" else "sub", [*sides, product])
    if op == "mul":
        return a * b, passed(b, da) + passed(a, db) + np.abs(a * b)
    if op == "div":
        y = a / b
        return y, passed(1 / b, da) + passed(y / b, db) + 2 * np.abs(y)
    if op == "pow":
        y = np.power(a, b)
        return y, passed(y * b / a, da) + passed(y * np.log(np.abs(a)), db) + 16 * np.abs(y)
    # Accurate to a few roundings of its terms, not of its small tails: rounding the exponent of e^(-x² / 2) changes it
    # by that much.
    if op == "cdf":
        y = normal(a)
        return y, passed(normal_density(a), da) + 4 * (1 + np.abs(2 * y - 1))
    assert op == "pdf"
    y = normal_density(a)
    return y, passed(a * y, da) + 8 * y * (1 + a * a)


def passed(slope: Any, error: Array) -> Array:
    """The error that an operand's error causes; zero for an exact operand."""
    return np.where((error == 0) | (slope == 0), 0, np.abs(slope) * error)


def row(kind: int, x: Array, error: Array) -> Value:
    """A reduction over the last dimension, which is kept."""
    y = ROWS[kind](x, axis=-1, keepdims=True, **({"initial": -np.inf if kind == 2 else np.inf} if kind > 1 else {}))
    if kind > 1:
        return y, np.where(np.isfinite(x), error, 0).max(axis=-1, keepdims=True, initial=0)
    size = (error + pairwise(x.shape[-1]) * np.abs(x)).sum(-1, keepdims=True)
    return (y, size) if kind == 0 else (y, size / max(x.shape[-1], 1) + np.abs(y))


def summed(x: Array, error: Array, shape: tuple[int, ...]) -> Value:
    """The sum over broadcast dimensions, to this shape."""
    count = x.size // max(int(np.prod(shape)), 1)
    more = x.ndim - len(shape)
    axes = tuple(i for i, size in enumerate(x.shape) if i < more or shape[i - more] != size)
    if not axes:
        return x, error
    size = error + pairwise(count) * np.abs(x)
    return x.sum(axes).reshape(shape), size.sum(axes).reshape(shape)
