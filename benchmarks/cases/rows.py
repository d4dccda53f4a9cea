"""What is measured: the operators over the last dimension, and the gated ones.

The floor of a case is the time in which a copy, measured beside it, moves as many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cases.case import BOTH, ROWS, SIZES, Case, Goal, as_fast_as_in_torch, moving

VARIANTS = ("forward", BOTH)
NORMS = ("rms_norm", "layer_norm")
REDUCED = (*NORMS, "softmax")  # of these every length of row is measured

# Operator -> the most times the floor that its forward, and forward and backward, may take; 0 promises nothing.
FLOORS = {
    "rms_norm": (1.05, 1.12),
    "layer_norm": (1.05, 1.15),
    "add_rms_norm": (1.04, 0.0),
    "add_layer_norm": (0.0, 0.0),
    "softmax": (1.06, 1.06),
    "cross_entropy": (1.10, 1.08),
    "bias_act": (1.05, 0.0),
    "swiglu": (1.03, 1.03),
    "rope": (1.06, 0.0),
}


def row_cases() -> Iterator[Case]:
    yield from _rows()
    yield from _dtypes()
    yield from _small()
    yield from _python()
    yield from _cpu()


def shape_of(operator: str, rows: int, columns: int, vocabulary: int = 0) -> tuple[int, ...]:
    """So many elements, in the shape that the operator is used with."""
    if operator == "rope":  # batch, sequence, heads of 128
        return 4, rows // 4, columns // 128, 128
    if operator == "cross_entropy" and vocabulary:
        return rows // 2, vocabulary
    return rows, columns


def _goals(times_floor: float) -> tuple[Goal, ...]:
    """Within so many times the floor, and within 2 % of the fastest peer."""
    floor = (Goal("torch", "copy", 1 / times_floor, as_time=True),) if times_floor else ()
    return (*floor, Goal("torch", "fastest peer", 1 / 1.02, as_time=True))


def _in_tensorflow() -> tuple[Goal, ...]:
    graph = "fusedops, graph"
    return as_fast_as_in_torch(), Goal("tf", "XLA"), Goal("tf", "XLA", contender=graph)


def _rows() -> Iterator[Case]:
    for operator in ROWS:
        shape = shape_of(operator, 16384, 8192, vocabulary=128256)
        for variant, times in zip(VARIANTS, FLOORS[operator], strict=True):
            yield moving("rows", "cuda", operator, variant, "bfloat16", shape, *_goals(times), *_in_tensorflow())
    for operator in REDUCED:
        for variant, times in zip(VARIANTS, (1.10, 1.25), strict=True):
            goals = (*_goals(times), *_in_tensorflow())
            yield moving("rows", "cuda", operator, variant, "bfloat16", (65536, 1024), *goals)


def _dtypes() -> Iterator[Case]:
    """As many bytes as 16384 rows of bfloat16 have."""
    for operator in (*REDUCED, "swiglu"):
        for dtype in ("float32", "float16", "float64"):
            shape = (2 * 16384 // SIZES[dtype], 8192)
            for variant, times in zip(VARIANTS, FLOORS[operator], strict=True):
                goals = _goals(0.0 if dtype == "float64" else times)  # there, arithmetic may take longer than memory
                yield moving("dtypes", "cuda", operator, variant, dtype, shape, *goals, frameworks=("torch",))
    for operator in NORMS:
        for variant, times in zip(VARIANTS, FLOORS[operator], strict=True):
            more = {"frameworks": ("torch",), "parameters": "float32"}
            yield moving("dtypes", "cuda", operator, variant, "bfloat16", (16384, 8192), *_goals(times), **more)  # type: ignore[arg-type]


def _small() -> Iterator[Case]:
    for operator in REDUCED:
        for columns in (4096, 8192):
            for rows in (1, 8, 64):
                goals = _goals(0.0)
                yield moving(
                    "small", "cuda", operator, "forward", "bfloat16", (rows, columns), *goals, frameworks=("torch",)
                )
        goals = (Goal("torch", seconds=20e-6), *_goals(0.0))
        yield moving("small", "cuda", operator, "forward", "bfloat16", (4096, 4096), *goals, frameworks=("torch",))


def _python() -> Iterator[Case]:
    goal = Goal("torch", "fastest peer", as_time=True)
    for rows, columns, operators in ((4096, 4096, ROWS), (256, 1024, REDUCED)):
        for operator in operators:
            shape = shape_of(operator, rows, columns)
            yield moving("python", "cuda", operator, BOTH, "bfloat16", shape, goal, frameworks=("torch",))


def _cpu() -> Iterator[Case]:
    for operator in ROWS:
        norm = operator.endswith("_norm")
        faster = 2.0 if norm or operator == "cross_entropy" else 1.0
        goals = [Goal("torch", "eager"), Goal("tf", "XLA", faster)]
        goals += [Goal("tf", "eager", 5.0)] if norm else []
        yield moving("cpu-rows", "cpu", operator, BOTH, "float32", shape_of(operator, 4096, 1024), *goals)
