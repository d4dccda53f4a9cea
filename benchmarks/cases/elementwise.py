"""Cases of the elementwise operators: bound by memory bandwidth, by the launch, and on a million elements."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cases.case import SIZES, Case, Goal, as_fast_as_in_torch, bandwidth_case
from benchmarks.operators import ELEMENTWISE


def stream() -> Iterator[Case]:
    """TensorFlow runs the same kernels: two dtypes suffice to show that they take the same time."""
    shape = (2**28,)
    for dtype in SIZES:
        both = ("torch", "tf") if dtype in ("float32", "bfloat16") else ("torch",)
        for operator in ELEMENTWISE:
            goals = (Goal("torch", "copy", 0.97), as_fast_as_in_torch())
            yield bandwidth_case("stream", "cuda", operator.name, "forward", dtype, shape, *goals, frameworks=both)
        goals = (Goal("torch", "copy", 0.95), as_fast_as_in_torch())
        yield bandwidth_case("stream", "cuda", "axpby", "backward", dtype, shape, *goals, frameworks=both)


def launch() -> Iterator[Case]:
    for variant in ("graph, rotating", "graph, one buffer", "profiler, rotating"):
        goal = Goal("torch", "eager", 1.6, or_floor="launch floor")
        yield bandwidth_case("launch", "cuda", "relu", variant, "float32", (2**20,), goal, frameworks=("torch",))


def seeds() -> Iterator[Case]:
    """Typical first kernels: relu, and a·x + b as one kernel instead of two."""
    for section, device in (("seeds", "cuda"), ("seeds-cpu", "cpu")):
        for operator in ("relu", "axpby"):
            yield bandwidth_case(section, device, operator, "forward", "float32", (2**20,))


def cpu() -> Iterator[Case]:
    for variant in ("forward", "backward"):
        for operator in ELEMENTWISE:
            if variant == "backward" and not operator.moves[1]:
                continue
            tf = 1.3 if (operator.name, variant) == ("axpby", "forward") else 1.0
            goals = (Goal("torch", "eager", 1.0), Goal("tf", "eager", tf))
            yield bandwidth_case("cpu", "cpu", operator.name, variant, "float32", (2**24,), *goals)
