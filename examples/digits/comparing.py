"""Compares frameworks bit by bit: the logits of all test images, and the gradients of one batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from common.bits import differing
from data import Digits

BATCH = 128


@dataclass(frozen=True)
class Comparison:
    what: str
    operators: str  # "fusedops" or "their own"
    other: str  # the framework that is compared with PyTorch
    compiled: bool  # True if it ran a graph
    first: np.ndarray
    second: np.ndarray

    @property
    def differing_bits(self) -> np.ndarray:
        """The number of differing bits of each value."""
        return differing(self.first, self.second)

    @property
    def bits(self) -> int:
        return 32 * self.first.size


def compare(first: Any, second: Any, parameters: Mapping[str, np.ndarray], digits: Digits) -> list[Comparison]:
    """Runs the same weights and images in both frameworks, with fusedops and with the frameworks' own operators."""
    batch = digits.train_images[:BATCH]
    labels = digits.train_labels[:BATCH]
    # The loss is each framework's own and not compared: both sides get the same gradient of the logits.
    upstream = first.upstream(first.logits(first.fused, parameters, batch, compiled=False), labels)
    result = []
    for operators, fo, other in (
        ("fusedops", first.fused, second.fused),
        ("their own", first.plain, second.plain),
    ):
        logits = first.logits(fo, parameters, digits.test_images, compiled=False)
        gradients = _joined(first.gradients(fo, parameters, batch, upstream, compiled=False))
        for compiled in second.compiled:
            other_logits = second.logits(other, parameters, digits.test_images, compiled)
            result.append(Comparison("test logits", operators, second.title, compiled, logits, other_logits))
        for compiled in second.compiled:
            other_gradients = _joined(second.gradients(other, parameters, batch, upstream, compiled))
            result.append(Comparison("gradients", operators, second.title, compiled, gradients, other_gradients))
    return result


def of_logits(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """The comparisons of test logits, one for each framework and its operators."""
    found: dict[tuple[str, str], Comparison] = {}
    for c in comparisons:
        if c.what == "test logits":
            found.setdefault((c.operators, c.other), c)
    return list(found.values())


def _joined(gradients: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([gradients[name].ravel() for name in sorted(gradients)])
