"""Expressions in NumPy and float64: a definition's instructions, stage by stage, and the text itself as Python."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusedops.expressions import Definition
from fusedops.expressions.graph import COMPARISONS, FUSED, OPERATIONS

Array = np.ndarray[Any, Any]

UFUNCS = ("exp", "log", "log1p", "expm1", "sqrt", "sin", "cos", "tanh", "abs", "floor", "sign")

erf = np.vectorize(math.erf, otypes=[float])
cdf = np.vectorize(lambda x: math.erfc(-x / math.sqrt(2)) / 2, otypes=[float])


def sigmoid(x: Any) -> Any:
    return np.exp(-np.logaddexp(0, -x))


OPERATORS: dict[str, Callable[..., Any]] = {
    "neg": np.negative,
    "fma": lambda a, b, c: a * b + c,
    "fms": lambda a, b, c: a * b - c,
    "fnma": lambda a, b, c: c - a * b,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "lt": lambda a, b: np.less(a, b) * 1.0,
    "le": lambda a, b: np.less_equal(a, b) * 1.0,
    "gt": lambda a, b: np.greater(a, b) * 1.0,
    "ge": lambda a, b: np.greater_equal(a, b) * 1.0,
    "eq": lambda a, b: np.equal(a, b) * 1.0,
    "ne": lambda a, b: np.not_equal(a, b) * 1.0,
    "where": lambda c, a, b: np.where(np.not_equal(c, 0), a, b),
    "min": np.minimum,
    "max": np.maximum,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": sigmoid,
    "erf": erf,
    "cdf": cdf,
    "pdf": lambda x: np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    **{name: getattr(np, name) for name in UFUNCS},
}
REDUCTIONS = (np.sum, np.mean, np.max, np.min)


def evaluate(definition: Definition, arrays: Sequence[Any]) -> list[Array]:
    """The results. None stands for an absent optional input."""
    with np.errstate(all="ignore"):
        return _evaluate(definition, arrays)


def _evaluate(definition: Definition, arrays: Sequence[Any]) -> list[Array]:
    shape = np.broadcast_shapes(*(np.shape(a) for a in arrays if a is not None))
    full = [np.broadcast_to(0.0 if a is None else a, shape) for a in arrays]
    program = definition.program
    reduced: dict[int, Array] = {}
    values: list[Array] = []
    for stage, code in enumerate(program.stages):
        values = []
        for instruction in code:
            op = OPERATIONS[instruction.op]
            if op == "input":
                values.append(full[instruction.a])
            elif op == "constant":
                values.append(np.float64(instruction.value))
            elif op == "reduced":
                values.append(reduced[instruction.a])
            else:
                operands = (instruction.a, instruction.b, instruction.c)[: operand_count(op)]
                assert all(place < len(values) for place in operands)
                values.append(OPERATORS[op](*(values[place] for place in operands)))
        for number, reduction in enumerate(program.reductions):
            if reduction.stage == stage:
                terms = np.broadcast_to(values[reduction.value], shape)
                reduced[number] = REDUCTIONS[reduction.kind](terms, axis=-1, keepdims=True)
    results = []
    for result in definition.results:
        value = np.broadcast_to(values[result.value], shape)
        if result.of_rows:
            value = value[..., :1]
        results.append(value if result.like is None else sum_to(value, np.shape(arrays[result.like])))
    return results


def operand_count(op: str) -> int:
    operator = OPERATORS[op]
    if isinstance(operator, np.ufunc):
        return operator.nin
    return 3 if op in ("where", *FUSED) else 2 if op in COMPARISONS else 1


def sum_to(value: Array, shape: tuple[int, ...]) -> Array:
    value = value.sum(axis=tuple(range(value.ndim - len(shape))))
    axes = tuple(i for i, size in enumerate(shape) if size == 1)
    return value.sum(axis=axes, keepdims=True)


def reference(text: str, names: Sequence[str], of_rows: Sequence[bool] = ()) -> Callable[..., list[Array]]:
    """The text as a Python function of arrays, independent of the package's own parser; `of_rows` lists which results
    are constant along a row."""
    statements = [line.strip() for line in text.replace(";", "\n").splitlines() if line.strip()]
    if not statements[-1].startswith("return"):
        statements[-1] = f"return {statements[-1]}"
    body = textwrap.indent("\n".join(statements), "  ")
    scope: dict[str, Any] = {**NAMESPACE}
    exec(f"def function({', '.join(names)}):\n{body}", scope)

    def call(*arrays: Any) -> list[Array]:
        shape = np.broadcast_shapes(*map(np.shape, arrays))
        scope.update(_reductions(shape))
        with np.errstate(all="ignore"):
            results = scope["function"](*(np.broadcast_to(a, shape) for a in arrays))
        results = results if isinstance(results, tuple) else (results,)
        full = [np.broadcast_to(result, shape) * 1.0 for result in results]
        return [y[..., :1] if row else y for y, row in itertools.zip_longest(full, of_rows, fillvalue=False)]

    return call


def _reductions(shape: tuple[int, ...]) -> dict[str, Callable[..., Any]]:
    """Reductions over rows. Inputs, also numbers, are broadcast to a row's length: in a row of 5 elements, sum(2) is
    10."""

    def row(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: function(np.broadcast_to(x, shape), axis=-1, keepdims=True)

    return {
        "sum": row(np.sum),
        "mean": row(np.mean),
        "max": lambda *x: np.maximum(*x) if len(x) == 2 else row(np.max)(*x),
        "min": lambda *x: np.minimum(*x) if len(x) == 2 else row(np.min)(*x),
    }


NAMESPACE: dict[str, Any] = {
    **{name: OPERATORS[name] for name in (*UFUNCS, "rsqrt", "sigmoid", "erf")},
    "where": np.where,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * cdf(x),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * sigmoid(x),
    "softplus": lambda x: np.logaddexp(x, 0),
    "pi": math.pi,
    "e": math.e,
    "inf": math.inf,
    "nan": math.nan,
}


def numeric_gradients(
    function: Callable[..., list[Array]], arrays: Sequence[Any], upstream: Sequence[Any], step: float = 1e-5
) -> list[Array]:
    """The gradients of the sum of results times upstream, by central differences."""

    def total(arrays: Sequence[Any]) -> float:
        return float(sum(np.sum(y * dy) for y, dy in zip(function(*arrays), upstream, strict=True) if dy is not None))

    gradients = []
    for which, array in enumerate(arrays):
        gradient = np.zeros(np.shape(array))
        for place in np.ndindex(gradient.shape):
            ends = []
            for sign in (1, -1):
                moved = np.array(array)
                moved[place] += sign * step
                ends.append(total([*arrays[:which], moved, *arrays[which + 1 :]]))
            gradient[place] = (ends[0] - ends[1]) / (2 * step)
        gradients.append(gradient)
    return gradients
