"""What is measured: the elementwise operators, the matrix products and models.

The operators over rows are in rows.py, growing sizes in growth.py, calls on small inputs in calls.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from benchmarks.cases.calls import call_cases
from benchmarks.cases.case import (
    BACKWARD,
    BOTH,
    ELEMENTWISE,
    LLAMA,
    SIZES,
    Case,
    Goal,
    as_fast_as_in_torch,
    moving,
    product,
)
from benchmarks.cases.growth import growth_cases
from benchmarks.cases.rows import NORMS, VARIANTS, row_cases

# Of C = A·B: as it is, and the two products of its backward: dC·Bᵀ and Aᵀ·dC.
PRODUCTS = ("NN", "NT", "TN")


def cases() -> Iterator[Case]:
    yield from _stream()
    yield from _launch()
    yield from _matmul()
    yield from row_cases()
    yield from growth_cases()
    yield from _seeds()
    yield from call_cases()
    yield from _cpu()
    yield from _keras()
    yield from _transformers()


def _stream() -> Iterator[Case]:
    """The kernels are the same in TensorFlow: two dtypes show that they also take the same time."""
    shape = (2**28,)
    for dtype in SIZES:
        both = ("torch", "tf") if dtype in ("float32", "bfloat16") else ("torch",)
        for operator in ELEMENTWISE:
            goals = (Goal("torch", "copy", 0.97), as_fast_as_in_torch())
            yield moving("stream", "cuda", operator, "forward", dtype, shape, *goals, frameworks=both)
        goals = (Goal("torch", "copy", 0.95), as_fast_as_in_torch())
        yield moving("stream", "cuda", "axpby", "backward", dtype, shape, *goals, frameworks=both)


def _launch() -> Iterator[Case]:
    for variant in ("graph, rotating", "graph, one buffer", "profiler, rotating"):
        goal = Goal("torch", "eager", 1.6, or_floor="launch floor")
        yield moving("launch", "cuda", "relu", variant, "float32", (2**20,), goal, frameworks=("torch",))


def _matmul() -> Iterator[Case]:
    speeds = {"float32": 0.8, "float16": 0.93, "bfloat16": 0.93, "float64": 0.7}
    for shape in ((4096, 4096, 4096), (8192, 8192, 8192), (4095, 4097, 4099)):
        for dtype, speed in speeds.items():
            goal = Goal("torch", "eager", 0.5 if shape[0] % 2 else speed)
            for variant in PRODUCTS:
                both = ("torch", "tf") if variant == "NN" else ("torch",)  # likewise
                case = product("matmul", "cuda", variant, dtype, shape, goal, as_fast_as_in_torch())
                yield replace(case, frameworks=both)


def _seeds() -> Iterator[Case]:
    """What many have written their first kernel for: relu, and a·x + b as one kernel instead of two."""
    for section, device in (("seeds", "cuda"), ("seeds-cpu", "cpu")):
        for operator in ("relu", "axpby"):
            yield moving(section, device, operator, "forward", "float32", (2**20,))


def _cpu() -> Iterator[Case]:
    for variant in ("forward", "backward"):
        for operator in ELEMENTWISE:
            if variant == "backward" and operator not in BACKWARD:
                continue
            tf = 1.3 if (operator, variant) == ("axpby", "forward") else 1.0
            goals = (Goal("torch", "eager", 1.0), Goal("tf", "eager", tf))
            yield moving("cpu", "cpu", operator, variant, "float32", (2**24,), *goals)
    for variant in PRODUCTS:
        goals = (Goal("torch", "eager", 1.0), Goal("tf", "eager", 1.0))
        yield product("cpu", "cpu", variant, "float32", (2048, 2048, 2048), *goals)


def _keras() -> Iterator[Case]:
    """Layers with weights of the same dtype, and of float32, as mixed precision has them."""
    ahead = (Goal("tf", "XLA"), Goal("tf", "XLA", contender="fusedops, XLA"))
    for operator in NORMS:
        for variant in VARIANTS:
            goals = (*ahead, Goal("tf", "eager", 10.0)) if variant == BOTH else ahead
            for parameters in ("", "float32"):
                yield moving(
                    "keras",
                    "cuda",
                    operator,
                    variant,
                    "bfloat16",
                    (16384, 8192),
                    *goals,
                    frameworks=("tf",),
                    parameters=parameters,
                )
            yield moving("keras", "cpu", operator, variant, "float32", (1024, 1024), frameworks=("tf",))
    goals = (
        Goal("tf", "graph", 1.5, contender="fusedops, graph"),
        Goal("tf", "XLA", contender="fusedops, XLA"),
    )
    step = ("training step", ("tf",))
    yield _llama("keras", "cuda", *step, "bfloat16", (1, 4096), *goals, parameters="float32")
    yield _llama("keras", "cpu", *step, "float32", (2, 64))


def _transformers() -> Iterator[Case]:
    goals = (
        Goal("torch", "eager", 1.08),
        Goal("torch", "Liger"),
        Goal("torch", "compiled", contender="fusedops, compiled"),
    )
    yield _llama("transformers", "cuda", BOTH, ("torch",), "bfloat16", (1, 4096), *goals)
    yield _llama("transformers", "cpu", BOTH, ("torch",), "float32", (2, 64))


def _llama(
    section: str,
    device: str,
    variant: str,
    frameworks: tuple[str, ...],
    dtype: str,
    shape: tuple[int, int],
    *goals: Goal,
    parameters: str = "",
) -> Case:
    tokens = float(prod(shape))
    return Case(section, device, LLAMA, variant, dtype, shape, tokens, "token", frameworks, goals, parameters)
