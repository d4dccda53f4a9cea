"""What is chosen for a call, by its seed and number alone."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.helpers.numerics import DTYPES
from tests.helpers.specification import Sample, Specification, pick
from tests.specifications import SPECIFICATIONS

DRAWN = tuple(spec for spec in SPECIFICATIONS if not spec.of_values_only)
NAMED = {spec.name: spec for spec in DRAWN}
FRAMEWORKS = ("torch", "tf")
DEVICES = ("cpu", "cuda")

# Way to call an operator -> how many of a thousand calls take it. Those that trace or compile are dear.
WAYS: Mapping[str, Mapping[str, int]] = {
    "torch": {
        "forward": 220,
        "inference mode": 30,
        "backward": 530,
        "vjp": 60,
        "jvp": 30,
        "double backward": 40,
        "vmap": 30,
        "vmap of gradients": 20,
        "threads": 30,
        "compiled": 10,
    },
    "tf": {
        "forward": 310,
        "backward": 599,
        "jvp": 4,
        "double backward": 30,
        "vmap": 1,
        "vmap of gradients": 1,
        "threads": 25,
        "graph": 20,
        "XLA": 10,
    },
}
COMPILED = ("compiled", "graph", "XLA")  # of one dtype, one set of options, one number of threads: compiled once
# What keeps all that it traces or compiles: TensorFlow's forward mode, a function for every operator and shape.
KEEPING = (*(("torch", way) for way in COMPILED), *(("tf", way) for way in (*COMPILED, "jvp")))
MAPPED = ("vmap", "vmap of gradients")
SMALL = ("jvp", "double backward", *MAPPED)
# Elements of the first large input at most -> of how many thousandths of the calls.
SIZES = {60: 500, 600: 475, 6_000: 22, 100_000: 3}


Key = tuple[str, str, str, str]  # framework, device, way, operator


@dataclass(frozen=True)
class Plan:
    seed: int
    number: int
    framework: str
    device: str
    operator: str
    way: str
    dtype: str
    wide_parameters: bool  # in float32 beside 16 bits
    shape: tuple[int, ...] | None  # of Specification.draw
    other: int  # without a shape: which of Specification.more_samples
    any_options: bool  # or those of Specification.sample
    any_layout: bool
    some_gradients: bool  # or all
    threads: int  # of PyTorch, within an operator
    beside: bool  # compared with the other framework, where the bits are promised

    def __str__(self) -> str:
        where = f"{self.operator} in {self.framework} on {self.device}, {self.way}, {self.dtype}"
        return f"{self.seed}:{self.number}, {where}"

    @property
    def key(self) -> Key:
        return self.framework, self.device, self.way, self.operator

    @property
    def spec(self) -> Specification:
        return NAMED[self.operator]

    def simpler(self) -> Iterator[Plan]:
        """Plans that may fail in the same way, those first that leave most out."""
        if self.way not in ("forward", "backward"):
            yield replace(self, way="backward")
        if self.way == "backward":
            yield replace(self, way="forward")
        for name, simple in (
            ("any_layout", False),
            ("any_options", False),
            ("wide_parameters", False),
            ("some_gradients", False),
            ("threads", 1),
        ):
            if getattr(self, name) != simple:
                yield replace(self, **{name: simple})
        if self.shape is None:
            yield replace(self, shape=(2, 3, 5), any_options=True)
            return
        if len(self.shape) > self.spec.least_rank:
            yield replace(self, shape=self.shape[1:])
        for i, size in enumerate(self.shape):
            for less in dict.fromkeys((1, 2, size // 2, size - 1)):
                if 0 < less < size:
                    yield replace(self, shape=(*self.shape[:i], less, *self.shape[i + 1 :]))


def draw(seed: int, number: int) -> Plan:
    random = np.random.default_rng([seed, number])
    framework, device = pick(random, "torch", "torch", "tf"), pick(random, *DEVICES)  # TensorFlow takes its time
    spec = pick(random, *DRAWN)
    way, most = weighted(random, WAYS[framework]), weighted(random, SIZES)
    dtype = pick(random, *DTYPES)
    if way in COMPILED:
        dtype = DTYPES[(seed + DRAWN.index(spec)) % len(DTYPES)]
    if way in SMALL:
        most = min(SIZES)
    shape = _shape(spec, way, most, random)
    other = None
    if way not in COMPILED and pick(random, True, False, False):
        other = pick(random, *_fitting(spec, seed, most))
    return Plan(
        seed,
        number,
        framework,
        device,
        spec.name,
        way,
        dtype,
        wide_parameters=way not in COMPILED and dtype in ("float16", "bfloat16") and pick(random, True, False),
        shape=shape if other is None else None,
        other=other or 0,
        any_options=way not in COMPILED,
        # Not for jvp: PyTorch copies tangents into the layout of their inputs, and refuses expanded ones.
        any_layout=way not in (*COMPILED, "jvp") and pick(random, True, False),
        some_gradients=way not in COMPILED and pick(random, True, False, False),
        threads=1 if way in COMPILED else pick(random, 1, 1, 1, 1, 1, 2, 3, 4),
        beside=pick(random, True, False),
    )


@functools.cache
def more_samples(spec: Specification, seed: int) -> list[Sample]:
    """With finite values: what becomes of NaN and infinities, the tests of special values know."""
    samples = list(spec.more_samples(np.random.default_rng(seed)))
    return [sample for sample in samples if all(np.isfinite(sample.inputs[name]).all() for name in sample.tensors)]


@functools.cache
def _fitting(spec: Specification, seed: int, most: int) -> tuple[int | None, ...]:
    """Which of the samples have at most so many elements."""
    samples = enumerate(more_samples(spec, seed))
    return tuple(i for i, x in samples if max(x.inputs[name].size for name in x.tensors) <= most) or (None,)


def weighted(random: np.random.Generator, weights: Mapping[Any, int]) -> Any:
    """A key, as often as its weight says."""
    ends = list(itertools.accumulate(weights.values()))
    return list(weights)[bisect.bisect(ends, random.integers(ends[-1]))]


def _shape(spec: Specification, way: str, most: int, random: np.random.Generator) -> tuple[int, ...]:
    """Of at most so many elements, now and then of none."""
    if way == "XLA":
        return (4, 3, 8)  # which is compiled in
    if way in COMPILED:  # sizes that are never the same by chance, for which a compiler would start over
        return pick(random, 7, 9, 11, 13), pick(random, 3, 4, 6), pick(random, 16, 20, 24, 32, 40)
    rank = max(spec.least_rank, int(random.integers(0, 5)))
    shape, left = [], float(most)
    for _ in range(rank):
        size = int(math.exp(random.uniform(0, math.log(left + 1))))
        shape.append(size)
        left = max(1.0, left / size)
    if rank and random.integers(50) == 0:
        shape[0] = 0
    return tuple(int(size) for size in random.permutation(shape))
