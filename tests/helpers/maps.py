"""Mapped calls for both frameworks: a call on tensors, some of which are sliced for each mapped call.

Slices are taken along the first dimension; the other tensors are shared. A mapped call has a smaller rank than the call
on the whole tensors, and the operator refuses some shapes. All sizes of a drawn call are equal where its specification
permits, so that a mismatched dimension is not refused.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from fusedops import axes
from tests.helpers.checks import small_samples
from tests.helpers.specification import Sample, Specification

SIZE = 3
MAX_SELECTED = 3  # up to this many tensors, all selections are mapped; beyond it, one, all, and all but one
MAX_ELEMENTS = 1500


def equal_sizes(
    spec: Specification, random: np.random.Generator, drawn: int = 4, highest_rank: int = 3
) -> Iterator[Sample]:
    """Calls of each rank: one with the default options, and some with any options, masks and absent inputs."""
    for rank in range(max(1, spec.least_rank), highest_rank + 1):
        shape = (SIZE,) * rank
        yield spec.sample(shape, random)
        for _ in range(drawn):
            yield spec.draw(shape, random)


def with_more_tensors(spec: Specification, random: np.random.Generator) -> Iterator[Sample]:
    """Calls with optional inputs, such as masks of every rank."""
    usual = spec.sample((SIZE,) * max(1, spec.least_rank), random).tensors
    for sample in spec.more_samples(random):
        is_small = sum(sample.inputs[name].size for name in sample.tensors) <= MAX_ELEMENTS
        if is_small and not set(sample.tensors) <= set(usual):
            yield sample


def samples(spec: Specification, random: np.random.Generator) -> Iterator[Sample]:
    yield from equal_sizes(spec, random)
    yield from small_samples(spec, random)
    yield from with_more_tensors(spec, random)


def selections(sample: Sample, levels: int = 1) -> Iterator[tuple[str, ...]]:
    """The tensors mapped together: their first `levels` dimensions have the same sizes."""
    sizes: dict[tuple[int, ...], list[str]] = {}
    for name in sample.tensors:
        shape = np.shape(sample.inputs[name])
        if len(shape) >= levels and 0 not in shape[:levels]:
            sizes.setdefault(shape[:levels], []).append(name)
    for names in sizes.values():
        most = len(names)
        counts = range(1, most + 1) if most <= MAX_SELECTED else (1, most - 1, most)
        for count in counts:
            yield from itertools.combinations(names, count)


def sentence(error: Exception) -> str:
    """The core's message in an error, without the framework's text around it. Any other error is raised again."""
    found = re.search(r"fusedops\.\w+: .*?; got .*?(?= for '\{\{node| \[Op:|\n|$)", str(error))
    if not found:
        raise error
    return found[0]


def is_batched(table: dict[str, Any], spec: Specification, sample: Sample) -> bool:
    """True if the map over all inputs but the shared ones is a single call: by the operator's axes, and of one rank."""
    operator = table[spec.operator]
    attributes = {a.name: sample.options.get(a.name, a.default) for a in operator.attributes}
    ranks = {np.ndim(sample.inputs[name]) for name in sample.tensors if name not in spec.shared}
    given = [sample.inputs.get(x.name) for x in operator.inputs]
    return len(ranks) == 1 and axes.is_batched(operator, attributes, given)
