"""Cases of matrix products, and of linear layers, which are products with an epilogue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.cases.case import ALL, BOTH, Case, Goal, as_fast_as_in_torch, product
from benchmarks.cases.over_rows import JAX_GOALS, VARIANTS
from benchmarks.operators import OPERATORS

# Transposes in C = A·B and in its backward: dC·Bᵀ and Aᵀ·dC.
PRODUCTS = ("NN", "NT", "TN")
# Products for which cuBLAS has been faster: one row of odd length, few tiles, little work, a depth beside a multiple.
ODD = (
    ("bfloat16", (1, 4097, 4099)),
    ("bfloat16", (300, 300, 300_001)),
    *((dtype, (512, 512, 512)) for dtype in ("float32", "float64")),
    ("bfloat16", (4096, 4096, 65)),
)
# M, N, K of layers: up and down projection of a feed-forward network, and few rows.
LAYERS = {
    "linear": ((4096, 16384, 4096), (16384, 4096, 4096), (512, 16384, 4096)),
    "gated_linear": ((4096, 14336, 4096), (16384, 4096, 4096)),
    "experts": ((4096, 768, 2048), (8192, 1536, 4096)),
    "linear_cross_entropy": ((8192, 128256, 4096), (2048, 32000, 4096)),
    "linear_log_prob": ((8192, 128256, 4096), (2048, 32000, 4096)),
    "linear_kl_div": ((8192, 128256, 4096), (2048, 32000, 4096)),
}


def matmul() -> Iterator[Case]:
    speeds = {"float32": 0.8, "float16": 0.93, "bfloat16": 0.93, "float64": 0.7}
    for shape in ((4096, 4096, 4096), (8192, 8192, 8192), (4095, 4097, 4099)):
        for dtype, speed in speeds.items():
            goal = Goal("torch", "eager", 0.5 if shape[0] % 2 else speed)
            for variant in PRODUCTS:
                both = ("torch", "tf") if variant == "NN" else ("torch",)  # the kernels are the same
                case = product("matmul", "cuda", variant, dtype, shape, goal, as_fast_as_in_torch())
                yield replace(case, frameworks=both)
    for dtype, shape in ODD:
        for variant in PRODUCTS:
            goal = Goal("torch", "eager", 0.95)
            yield product("matmul", "cuda", variant, dtype, shape, goal, frameworks=("torch",))


def linear() -> Iterator[Case]:
    """Layers. Their goal is relative to the time of their products alone."""
    baselines = [Goal(framework, "fastest baseline", 1 / 1.02, as_time=True) for framework in ("torch", "tf")]
    for operator, shapes in LAYERS.items():
        for shape in shapes:
            for variant, times in zip(VARIANTS, OPERATORS[operator].floors, strict=True):
                floor = (Goal("torch", "products", 1 / times, as_time=True),) if times else ()
                goals = (*floor, *baselines, as_fast_as_in_torch(), *JAX_GOALS)
                yield product("linear", "cuda", variant, "bfloat16", shape, *goals, operator=operator, frameworks=ALL)


def grouped() -> Iterator[Case]:
    """64 groups of equal size. From 256 rows each on, the goal is also relative to one product of all rows."""
    for rows in (64, 256, 1024):
        for features in ((1536, 2048), (2048, 768)):
            for variant in VARIANTS:
                goals = [Goal("torch", "eager", 0.95), *([Goal("torch", "products", 0.9)] if rows >= 256 else [])]
                at = ("linear", "cuda", variant, "bfloat16", (64 * rows, *features))
                yield product(*at, *goals, operator="grouped_matmul", frameworks=("torch",))


def cpu() -> Iterator[Case]:
    goals = (Goal("torch", "eager", 1.0), Goal("tf", "eager", 1.0))
    for variant in PRODUCTS:
        yield product("cpu", "cpu", variant, "float32", (2048, 2048, 2048), *goals)
    for operator in (*LAYERS, "grouped_matmul"):
        for dtype in ("float32", "bfloat16") if operator == "linear_cross_entropy" else ("float32",):
            yield product("cpu", "cpu", BOTH, dtype, (1024, 1024, 1024), *goals, operator=operator)
