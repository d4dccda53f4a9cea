"""How many floating-point operations a call takes, for the operators whose work is products: once for both frameworks.

As the frameworks' own counters do, only products are counted, each multiplication and each addition as one operation.
A formula is called with what the operator's declaration names: the shapes of its inputs, None of an absent one, and its
attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

Shape = Sequence[int]
Formula = Callable[..., int]

FLOPS: dict[str, Formula] = {}


def flops(operator: str) -> Callable[[Formula], Formula]:
    """Declares the formula of `operator`."""

    def declare(formula: Formula) -> Formula:
        FLOPS[operator] = formula
        return formula

    return declare


@flops("matmul")
def _matmul(a: Shape, b: Shape, transpose_a: bool, transpose_b: bool) -> int:
    columns = b[-2] if transpose_b else b[-1]
    return 2 * prod(a) * columns


@flops("matmul_backward")
def _matmul_backward(
    dc: Shape, a: Shape | None, b: Shape, transpose_a: bool, transpose_b: bool, need_da: bool, need_db: bool
) -> int:
    summed = b[-1] if transpose_b else b[-2]  # by the forward
    return (need_da + need_db) * 2 * prod(dc) * summed


@flops("linear")
def _linear(x: Shape, weight: Shape, transpose_weight: bool, **_: Any) -> int:
    return 2 * prod(x) * (weight[0] if transpose_weight else weight[1])


@flops("linear_backward")
def _linear_backward(
    x: Shape,
    weight: Shape,
    z: Shape | None,
    activation: str,
    transpose_weight: bool,
    need_dx: bool,
    need_dweight: bool,
    **_: Any,
) -> int:
    again = activation != "identity" and (z is None or prod(z) == 0)
    return (again + need_dx + need_dweight) * _linear(x, weight, transpose_weight)


@flops("linear_cross_entropy")
def _linear_cross_entropy(x: Shape, weight: Shape, transpose_weight: bool, **_: Any) -> int:
    return _linear(x, weight, transpose_weight)


@flops("linear_cross_entropy_backward")
def _linear_cross_entropy_backward(
    x: Shape, weight: Shape, transpose_weight: bool, need_dx: bool, need_dweight: bool, **_: Any
) -> int:
    return (1 + need_dx + need_dweight) * _linear(x, weight, transpose_weight)


@flops("gated_linear")
def _gated_linear(x: Shape, gate_weight: Shape, transpose_weight: bool, **_: Any) -> int:
    return 2 * _linear(x, gate_weight, transpose_weight)


@flops("gated_linear_backward")
def _gated_linear_backward(
    x: Shape,
    gate_weight: Shape,
    gate: Shape | None,
    transpose_weight: bool,
    need_dx: bool,
    need_dgate_weight: bool,
    need_dup_weight: bool,
    **_: Any,
) -> int:
    again = gate is None or prod(gate) == 0
    products = 2 * again + 2 * need_dx + need_dgate_weight + need_dup_weight
    return products * _linear(x, gate_weight, transpose_weight)
