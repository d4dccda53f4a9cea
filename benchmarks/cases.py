"""What is measured: one `Case` per row, with the least work that it must do and the goals that it must reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}  # bytes

# Section -> title of its table.
SECTIONS = {
    "stream": "2^28 elements on the GPU: memory speed",
    "launch": "relu on 1 048 576 float32: GPU time alone",
    "matmul": "Matrix products on the GPU",
    "call": "A call on 16 floats, CPU, no gradient",
    "cpu": "2^24 float32 on the CPU; matrix products of 2048",
}

# Operator -> tensors that the forward and the backward move: each input read once, each output written once.
# The gradients of add, and of axpby's b, are the upstream gradient itself: nothing to measure.
FORWARD = {"axpby": 3, "add": 3, "scale": 2, "relu": 2, "polynomial_activation": 2}
BACKWARD = {"axpby": 3, "scale": 2, "relu": 3, "polynomial_activation": 3}
OPERATORS = (*FORWARD, "matmul")

# Of C = A·B: as it is, and the two products of its backward: dC·Bᵀ and Aᵀ·dC.
PRODUCTS = ("NN", "NT", "TN")


@dataclass(frozen=True)
class Goal:
    """Compares the work per second of a contender with that of another."""

    framework: str
    against: str
    speed: float  # of `contender`, at least this many times that of `against`
    contender: str = "fusedops"
    against_framework: str = ""  # "" is the same one
    floor: str = ""  # reached as well by whoever is within 5 % of this contender's time
    as_time: bool = False  # speak of times, not of speeds


@dataclass(frozen=True)
class Case:
    section: str
    device: str
    operator: str
    variant: str  # forward, backward, ...
    dtype: str
    shape: tuple[int, ...]  # of a matrix product: M, N, K
    work: float
    unit: str  # of the work: "B" or "FLOP"
    frameworks: tuple[str, ...] = ("torch", "tf")
    goals: tuple[Goal, ...] = field(default=())

    @property
    def key(self) -> str:
        return "/".join((self.section, self.operator, self.variant, self.dtype, "x".join(map(str, self.shape))))

    @property
    def transposes(self) -> tuple[bool, bool]:
        return self.variant[0] == "T", self.variant[1] == "T"


def cases() -> Iterator[Case]:
    yield from _stream()
    yield from _launch()
    yield from _matmul()
    yield from _call()
    yield from _cpu()


def _elementwise(
    section: str, device: str, operator: str, variant: str, dtype: str, count: int, *goals: Goal, **more: object
) -> Case:
    tensors = (BACKWARD if variant == "backward" else FORWARD)[operator]
    work = tensors * count * SIZES[dtype]
    return Case(section, device, operator, variant, dtype, (count,), work, "B", goals=goals, **more)  # type: ignore[arg-type]


def _product(section: str, device: str, variant: str, dtype: str, shape: tuple[int, ...], *goals: Goal) -> Case:
    return Case(section, device, "matmul", variant, dtype, shape, 2.0 * prod(shape), "FLOP", goals=goals)


def _as_fast_as_in_torch() -> Goal:
    """Both read the host's clock there: TensorFlow has no events."""
    return Goal("tf", "fusedops, host clock", 1 / 1.03, against_framework="torch", as_time=True)


def _stream() -> Iterator[Case]:
    for dtype in SIZES:
        for operator in FORWARD:
            copy = Goal("torch", "copy", 0.97)
            yield _elementwise("stream", "cuda", operator, "forward", dtype, 2**28, copy, _as_fast_as_in_torch())
        copy = Goal("torch", "copy", 0.95)
        yield _elementwise("stream", "cuda", "axpby", "backward", dtype, 2**28, copy, _as_fast_as_in_torch())


def _launch() -> Iterator[Case]:
    for variant in ("graph, rotating", "graph, one buffer", "profiler, rotating"):
        goal = Goal("torch", "eager", 1.6, floor="launch floor")
        yield _elementwise("launch", "cuda", "relu", variant, "float32", 2**20, goal, frameworks=("torch",))


def _matmul() -> Iterator[Case]:
    speeds = {"float32": 0.8, "float16": 0.93, "bfloat16": 0.93, "float64": 0.7}
    for shape in ((4096, 4096, 4096), (8192, 8192, 8192), (4095, 4097, 4099)):
        for dtype, speed in speeds.items():
            goal = Goal("torch", "eager", 0.5 if shape[0] % 2 else speed)
            for variant in PRODUCTS:
                yield _product("matmul", "cuda", variant, dtype, shape, goal, _as_fast_as_in_torch())


def _call() -> Iterator[Case]:
    goals = (
        Goal("torch", "addcmul", 1 / 3.2, as_time=True),
        Goal("tf", "tf.add", 1.0, as_time=True),
        Goal("tf", "raw_ops.AddV2", 1 / 1.3, contender="raw", as_time=True),
    )
    for operator in FORWARD:
        yield _elementwise("call", "cpu", operator, "forward", "float32", 16, *goals)


def _cpu() -> Iterator[Case]:
    for variant, moved in (("forward", FORWARD), ("backward", BACKWARD)):
        for operator in moved:
            tf = 1.3 if (operator, variant) == ("axpby", "forward") else 1.0
            goals = (Goal("torch", "eager", 1.0), Goal("tf", "eager", tf))
            yield _elementwise("cpu", "cpu", operator, variant, "float32", 2**24, *goals)
    for variant in PRODUCTS:
        goals = (Goal("torch", "eager", 1.0), Goal("tf", "eager", 1.0))
        yield _product("cpu", "cpu", variant, "float32", (2048, 2048, 2048), *goals)
