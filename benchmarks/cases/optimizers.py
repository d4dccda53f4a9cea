"""Cases of optimizer steps, whose floor is their memory traffic."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from benchmarks.cases.case import ALL, OPTIMIZERS, SIZES, Case, Goal
from benchmarks.operators.models import ADAMW

SMALL = 1000  # elements of a small tensor
MIXED, ALL_SMALL = "half of the tensors small", "all tensors small"
# Tensors moved: parameter, gradient and two moments are read, and all but the gradient are written.
MOVES = 7


def optimizers() -> Iterator[Case]:
    for dtype in ("float32", "bfloat16"):
        yield _case("cuda", MIXED, dtype, (400, 2_500_000))
        yield _case("cuda", ALL_SMALL, dtype, (10_000, SMALL))
    yield _case("cpu", MIXED, "float32", (400, 2_500))


def _case(device: str, variant: str, dtype: str, shape: tuple[int, int]) -> Case:
    work = float(MOVES * prod(shape) * SIZES[dtype])
    return Case(OPTIMIZERS, device, ADAMW, variant, dtype, shape, work, "B", ALL, (Goal("jax", "XLA"),))


def sizes_of(case: Case) -> list[int]:
    """The number of elements of each parameter."""
    tensors, mean = case.shape
    if case.variant == ALL_SMALL:
        return [mean] * tensors
    return [2 * mean - SMALL, SMALL] * (tensors // 2)
