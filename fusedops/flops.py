"""How many floating-point operations a call takes, for the operators whose work is products: once for both frameworks.

As the frameworks' own counters do, only products are counted, each multiplication and each addition as one operation.
A formula is called with what the operator's declaration names: the shapes of its inputs, None of an absent one, and its
attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

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
