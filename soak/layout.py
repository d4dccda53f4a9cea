"""A tensor's memory layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.helpers.specification import pick


@dataclass(frozen=True)
class Tensor:
    """A view of the one-dimensional array `memory`; strides and offset count elements, as in torch."""

    memory: np.ndarray
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def values(self) -> np.ndarray:
        strides = [stride * self.memory.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(self.memory[self.offset :], self.shape, strides)

    @property
    def has_repeats(self) -> bool:
        """True if a dimension is expanded: its stride is 0."""
        return any(stride == 0 and size > 1 for stride, size in zip(self.strides, self.shape, strict=True))

    @property
    def dtype(self) -> str:
        return self.memory.dtype.name

    @property
    def is_plain(self) -> bool:
        return self.offset == 0 and self.strides == _strides(self.shape)


def plain(values: np.ndarray) -> Tensor:
    """A contiguous, aligned tensor."""
    return Tensor(values.reshape(-1), values.shape, _strides(values.shape))


def drawn(values: np.ndarray, random: np.random.Generator) -> Tensor:
    """A tensor of these values in a random layout; the rest of its memory holds values that spoil results.

    An expanded dimension repeats its first slice.
    """
    kind = pick(random, "plain", "plain", "offset", "transposed", "permuted", "spaced", "expanded")
    rank, stored = values.ndim, list(values.shape)
    if kind == "plain" or not values.size:
        return plain(values)
    order = list(range(rank))[::-1]
    if kind == "transposed":
        order[:2] = order[1::-1]
    elif kind == "permuted":
        order = [int(i) for i in random.permutation(rank)]
    elif kind == "expanded" and rank:
        once = int(random.integers(rank))
        values = np.broadcast_to(values.take([0], once), values.shape)
        stored[once] = 1
    gaps = [int(pick(random, 1, 1, 2)) if kind == "spaced" else 1 for _ in stored]
    spaces = [int(pick(random, 0, 1, 8, 16)) if kind == "spaced" else 0 for _ in stored]
    strides = [
        stride if size == whole else 0
        for stride, size, whole in zip(_strides(stored, order, gaps, spaces), stored, values.shape, strict=True)
    ]
    offset = int(pick(random, 0, 1, 3, 8))
    length = offset + 1 + sum(stride * (size - 1) for stride, size in zip(strides, values.shape, strict=True))
    tensor = Tensor(np.full(length, _poison(values.dtype), values.dtype), values.shape, tuple(strides), offset)
    tensor.values[...] = values
    return tensor


def _strides(
    shape: Sequence[int],
    order: Sequence[int] | None = None,
    gaps: Sequence[int] | None = None,
    spaces: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """The strides of dimensions stored in this order, innermost first; by default contiguous."""
    strides, step = [0] * len(shape), 1
    for i in reversed(range(len(shape))) if order is None else order:
        strides[i] = step * (gaps[i] if gaps else 1)
        step = strides[i] * max(shape[i], 1) + (spaces[i] if spaces else 0)
    return tuple(strides)


def _poison(dtype: np.dtype) -> float | int | bool:
    if dtype.kind == "b":
        return True
    return 2**31 - 1 if dtype.kind in "iu" else math.nan
