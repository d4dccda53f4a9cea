"""Cases of the operators over the last dimension, and of the gated ones.

The floor of a case is the time in which a copy, measured in the same case, moves as many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.cases.case import ALL, BOTH, SIZES, Case, Goal, as_fast_as_in_torch, bandwidth_case
from benchmarks.operators import FLOAT8, OPERATORS, OVER_ROWS
from benchmarks.operators.record import Operator

VARIANTS = ("forward", BOTH)
NORMS = (OPERATORS["rms_norm"], OPERATORS["layer_norm"])
LONGEST = (2048, 131_072)  # the longest rows that a cluster of blocks holds
LONG = (4096, 28_672)
REPRESENTATIVES = (*NORMS, OPERATORS["softmax"])  # measured for more shapes than the other operators


def cases_over_rows() -> Iterator[Case]:
    yield from _rows()
    yield from _float8()
    yield from _dtypes()
    yield from _small()
    yield from _python()
    yield from _cpu()


def _goals(times_floor: float) -> tuple[Goal, ...]:
    """At most `times_floor` times the floor, unless 0, and within 2 % of the fastest baseline."""
    floor = (Goal("torch", "copy", 1 / times_floor, as_time=True),) if times_floor else ()
    return (*floor, Goal("torch", "fastest baseline", 1 / 1.02, as_time=True))


def _tf_goals() -> tuple[Goal, ...]:
    graph = "fusedops, graph"
    return as_fast_as_in_torch(), Goal("tf", "XLA"), Goal("tf", "XLA", implementation=graph)


JAX_GOALS = (as_fast_as_in_torch("jax"), Goal("jax", "XLA"))


def _frameworks(operator: Operator) -> tuple[str, ...]:
    return ALL[:2] if operator.random else ALL  # JAX has no generator of seeds


def _rows() -> Iterator[Case]:
    for operator in OVER_ROWS:
        shape, frameworks = operator.shape(*operator.largest), _frameworks(operator)
        for variant, times in zip(VARIANTS, operator.floors, strict=True):
            goals = (*_goals(times), *_tf_goals(), *JAX_GOALS)
            yield bandwidth_case(
                "rows", "cuda", operator.name, variant, "bfloat16", shape, *goals, frameworks=frameworks
            )
    for shape, floors in (((65536, 1024), (1.10, 1.25)), (LONGEST, (1.08, 1.08))):
        for operator in REPRESENTATIVES:
            for variant, times in zip(VARIANTS, floors, strict=True):
                goals = (*_goals(times), *_tf_goals())
                yield bandwidth_case("rows", "cuda", operator.name, variant, "bfloat16", shape, *goals)


def _float8() -> Iterator[Case]:
    shapes = [(operator, operator.shape(*operator.largest)) for operator in FLOAT8]
    for operator, shape in (*shapes, *((operator, LONG) for operator in FLOAT8 if "norm" in operator.name)):
        goals = _goals(operator.floors[0])
        yield bandwidth_case(
            "float8", "cuda", operator.name, "forward", "bfloat16", shape, *goals, frameworks=("torch",)
        )


def _dtypes() -> Iterator[Case]:
    """Cases with as many bytes as 16384 rows of bfloat16."""
    for operator in (*REPRESENTATIVES, OPERATORS["swiglu"]):
        for dtype in ("float32", "float16", "float64"):
            shape = (2 * 16384 // SIZES[dtype], 8192)
            for variant, times in zip(VARIANTS, operator.floors, strict=True):
                goals = _goals(0.0 if dtype == "float64" else times)  # float64 may be bound by arithmetic
                yield bandwidth_case(
                    "dtypes", "cuda", operator.name, variant, dtype, shape, *goals, frameworks=("torch",)
                )
    for operator in NORMS:
        for variant, times in zip(VARIANTS, operator.floors, strict=True):
            more: dict[str, Any] = {"frameworks": ("torch",), "parameters": "float32"}
            yield bandwidth_case(
                "dtypes", "cuda", operator.name, variant, "bfloat16", (16384, 8192), *_goals(times), **more
            )


def _small() -> Iterator[Case]:
    largest = (4096, 4096)
    shapes = [(rows, columns) for columns in (4096, 8192) for rows in (1, 8, 64)]
    for operator in REPRESENTATIVES:
        for shape in (*shapes, largest):
            goals = (Goal("torch", seconds=20e-6), *_goals(0.0)) if shape == largest else _goals(0.0)
            yield bandwidth_case(
                "small", "cuda", operator.name, "forward", "bfloat16", shape, *goals, frameworks=("torch",)
            )


def _python() -> Iterator[Case]:
    goal = Goal("torch", "fastest baseline", as_time=True)
    for rows, columns, operators in ((4096, 4096, OVER_ROWS), (256, 1024, REPRESENTATIVES)):
        for operator in operators:
            shape = operator.shape(rows, columns)
            yield bandwidth_case("python", "cuda", operator.name, BOTH, "bfloat16", shape, goal, frameworks=("torch",))


def _cpu() -> Iterator[Case]:
    for operator in OVER_ROWS:
        goals = [
            Goal("torch", "eager"),
            *(Goal("tf", baseline, speed) for baseline, speed in operator.tf_speeds.items()),
        ]
        shape, frameworks = operator.shape(4096, 1024), _frameworks(operator)
        yield bandwidth_case("cpu-rows", "cpu", operator.name, BOTH, "float32", shape, *goals, frameworks=frameworks)
