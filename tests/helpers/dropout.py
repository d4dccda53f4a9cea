"""Dropout in NumPy: the generator by its definition, and the condition by which an element is dropped."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.helpers.specification import Array

_LOW = np.uint64(2**32 - 1)
_HALF = np.uint64(32)
_FACTORS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)


def philox(counters: Array, key: Array) -> Array:
    """Philox4x32-10: uint32 [..., 4] of counters [..., 4] and a key [2], with the lowest word first."""
    c0, c1, c2, c3 = np.moveaxis(counters.astype(np.uint64), -1, 0)
    k0, k1 = key.astype(np.uint64)
    for _ in range(10):
        a, b = c0 * _FACTORS[0], c2 * _FACTORS[1]
        c0, c1, c2, c3 = (b >> _HALF) ^ c1 ^ k0, b & _LOW, (a >> _HALF) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack([c0, c1, c2, c3], -1).astype(np.uint32)


def words(seed: Any, first: int, count: int) -> Array:
    """The random words of `count` elements from `first` on."""
    return _drawn(seed, np.arange(first // 4, (first + count + 3) // 4)).ravel()[first % 4 :][:count]


def _drawn(seed: Any, counters: Array) -> Array:
    """The words of counters with these lower halves, [..., 4]."""
    key, offset = (int(number) % 2**64 for number in seed)
    low = counters.astype(np.uint64)
    high = np.full_like(low, offset)
    halves = np.stack([low & _LOW, low >> _HALF, high & _LOW, high >> _HALF], -1)
    return philox(halves, np.array([key % 2**32, key >> 32], np.uint64))


def keep_mask(shape: tuple[int, ...], rate: float, seed: Any) -> Array:
    """The elements that dropout keeps. A seed of five numbers is that of a part of a call, as in philox.h."""
    least = min(round(rate * 2**32), 2**32 - 1)
    places = np.arange(int(np.prod(shape)))
    if len(seed) == 2:
        return (words(seed, 0, places.size) >= least).reshape(shape)
    first, run, stride = map(int, seed[2:])
    places = first + (places if run <= 0 else places // run * stride + places % run)
    drawn = np.take_along_axis(_drawn(seed[:2], places // 4), places[:, None] % 4, -1)
    return (drawn >= least).reshape(shape)


def dropped(x: Array, rate: float, seed: Any) -> Array:
    scale = x.dtype.type(1 / (1 - np.longdouble(rate)))
    return np.where(keep_mask(x.shape, rate, seed), x * scale, x.dtype.type(0))


def draw_seed(random: np.random.Generator) -> Array:
    """A random 64-bit seed."""
    return random.integers(-(2**63), 2**63, size=2)
