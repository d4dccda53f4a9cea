"""What is measured: matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.cases.case import Case, Goal, as_fast_as_in_torch, product

# Of C = A·B: as it is, and the two products of its backward: dC·Bᵀ and Aᵀ·dC.
PRODUCTS = ("NN", "NT", "TN")


def matmul() -> Iterator[Case]:
    speeds = {"float32": 0.8, "float16": 0.93, "bfloat16": 0.93, "float64": 0.7}
    for shape in ((4096, 4096, 4096), (8192, 8192, 8192), (4095, 4097, 4099)):
        for dtype, speed in speeds.items():
            goal = Goal("torch", "eager", 0.5 if shape[0] % 2 else speed)
            for variant in PRODUCTS:
                both = ("torch", "tf") if variant == "NN" else ("torch",)  # the kernels are the same
                case = product("matmul", "cuda", variant, dtype, shape, goal, as_fast_as_in_torch())
                yield replace(case, frameworks=both)


def cpu() -> Iterator[Case]:
    for variant in PRODUCTS:
        goals = (Goal("torch", "eager", 1.0), Goal("tf", "eager", 1.0))
        yield product("cpu", "cpu", variant, "float32", (2048, 2048, 2048), *goals)
