"""The plan of a call: all choices, drawn from its seed and number alone."""

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

DRAWN = tuple(spec for spec in SPECIFICATIONS if not spec.value_suites_only)
NAMED = {spec.name: spec for spec in DRAWN}
# Frequency of each framework, per thousand calls: eager TensorFlow is slow, and JAX compiles most calls.
FRAMEWORKS = {"torch": 657, "tf": 328, "jax": 15}
DEVICES = ("cpu", "cuda")

# Frequency of each way to call an operator, per thousand calls. Ways that trace or compile are expensive.
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
    "jax": {
        "forward": 300,
        "backward": 500,
        "jvp": 40,
        "double backward": 40,
        "vmap": 40,
        "vmap of gradients": 40,
        "threads": 20,
        "XLA": 20,
    },
}
# Compiled ways use one dtype, one set of options and one number of threads per operator, so it is compiled once.
COMPILED = ("compiled", "graph", "XLA")
# Ways that cache traces or compiled code. TensorFlow's forward mode caches a function per operator and shape, and JAX
# caches one for every call.
CACHING = (
    *(("torch", way) for way in COMPILED),
    *(("tf", way) for way in (*COMPILED, "jvp")),
    *(("jax", way) for way in WAYS["jax"]),
)
MAPPED = ("vmap", "vmap of gradients")
SMALL = ("jvp", "double backward", *MAPPED)
# Frequency of each upper limit on the elements of the largest input, per thousand calls.
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
    wide_parameters: bool  # float32 parameters with a 16-bit x
    shape: tuple[int, ...] | None  # argument of Specification.draw
    sample_index: int  # if shape is None: an index into Specification.more_samples
    any_options: bool  # False: the options of Specification.sample
    any_layout: bool
    some_gradients: bool  # False: all gradients
    threads: int  # PyTorch's intra-op threads
    is_cross_checked: bool  # True if compared with another framework, provided that its bits are guaranteed

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
        """Simpler plans that may fail in the same way, the greatest simplifications first."""
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
    framework, device = weighted(random, FRAMEWORKS), pick(random, *DEVICES)
    spec = pick(random, *DRAWN)
    way, most = weighted(random, WAYS[framework]), weighted(random, SIZES)
    dtype = pick(random, *DTYPES)
    if way in COMPILED:
        dtype = DTYPES[(seed + DRAWN.index(spec)) % len(DTYPES)]
    if way in SMALL:
        most = min(SIZES)
    shape = _shape(spec, way, most, random)
    sample_index = None
    if way not in COMPILED and pick(random, True, False, False):
        sample_index = pick(random, *_fitting(spec, seed, most))
    return Plan(
        seed,
        number,
        framework,
        device,
        spec.name,
        way,
        dtype,
        wide_parameters=way not in COMPILED and dtype in ("float16", "bfloat16") and pick(random, True, False),
        shape=shape if sample_index is None else None,
        sample_index=sample_index or 0,
        any_options=way not in COMPILED,
        # Not for jvp: PyTorch copies tangents into the layout of their inputs and rejects expanded inputs.
        any_layout=way not in (*COMPILED, "jvp") and pick(random, True, False),
        some_gradients=way not in COMPILED and pick(random, True, False, False),
        threads=1 if way in COMPILED else pick(random, 1, 1, 1, 1, 1, 2, 3, 4),
        is_cross_checked=pick(random, True, False),
    )


@functools.cache
def more_samples(spec: Specification, seed: int) -> list[Sample]:
    """The specification's further samples, if finite: the tests of special values cover NaN and infinities."""
    samples = list(spec.more_samples(np.random.default_rng(seed)))
    return [sample for sample in samples if all(np.isfinite(sample.inputs[name]).all() for name in sample.tensors)]


@functools.cache
def _fitting(spec: Specification, seed: int, most: int) -> tuple[int | None, ...]:
    """Indices of the samples whose tensors have at most `most` elements each."""
    samples = enumerate(more_samples(spec, seed))
    return tuple(i for i, x in samples if max(x.inputs[name].size for name in x.tensors) <= most) or (None,)


def weighted(random: np.random.Generator, weights: Mapping[Any, int]) -> Any:
    """A random key, drawn with these weights."""
    ends = list(itertools.accumulate(weights.values()))
    return list(weights)[bisect.bisect(ends, random.integers(ends[-1]))]


def _shape(spec: Specification, way: str, most: int, random: np.random.Generator) -> tuple[int, ...]:
    """A random shape of at most `most` elements, sometimes of none."""
    if way == "XLA":
        return (4, 3, 8)  # XLA compiles for each shape
    if way in COMPILED:  # disjoint sizes: a compiler would specialize on dimensions that happen to be equal
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
