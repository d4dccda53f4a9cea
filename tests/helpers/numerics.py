"""Compares a result with its reference. The tolerance is derived from the dtype and the roundings, never chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = ("float64", "float32", "float16", "bfloat16")
# On x86, 11 bits longer than float64, so that its own rounding is negligible.
LONGEST = np.longdouble


def reference_dtype(dtype: str) -> type[np.floating]:
    """The dtype of a reference. For float32 it is float64: 29 bits longer, and several times as fast as the longest."""
    return LONGEST if compute_dtype(dtype) == "float64" else np.float64


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def compute_dtype(name: str) -> str:
    return "float64" if name == "float64" else "float32"


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        return array.astype(numpy_dtype(dtype))


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def ulp(values: np.ndarray, dtype: str) -> np.ndarray:
    """The distance between neighbours in dtype at these magnitudes."""
    info = ml_dtypes.finfo(numpy_dtype(dtype))
    _, exponent = np.frexp(np.abs(values))
    return np.ldexp(values.dtype.type(1), np.maximum(exponent - 1, info.minexp) - info.nmant)


def half_ulp(magnitude: np.ndarray, dtype: str) -> np.ndarray:
    """The largest error of one rounding of a number of this magnitude."""
    info, kind = ml_dtypes.finfo(numpy_dtype(dtype)), magnitude.dtype.type
    return kind(info.eps) / 2 * magnitude + kind(info.smallest_subnormal) / 2


def tolerance(
    exact: np.ndarray, magnitude: np.ndarray, roundings: float, dtype: str, storage: tuple[Any, str] = (0, "float64")
) -> np.ndarray:
    """The largest error of a correct kernel.

    Each rounding in the compute dtype errs by half an eps of the magnitude, or half the smallest subnormal. A 16-bit
    result is rounded once more, by half an ulp of itself. Without any rounding the result is exact. `storage`: the
    number of roundings of intermediate values, and their dtype.
    """
    slack = 1.001 if roundings else 0  # products of (1 + eps), and the reference's own rounding
    error = slack * roundings * half_ulp(magnitude, compute_dtype(dtype))
    if np.any(storage[0]):
        error = error + storage[0] * half_ulp(magnitude, storage[1])
    if dtype == compute_dtype(dtype):
        return error
    return error + ulp(np.abs(exact) + error, dtype) / 2


def inaccurate(
    got: np.ndarray, exact: Any, magnitude: Any, roundings: float, storage: tuple[Any, str] = (0, "float64")
) -> tuple[np.ndarray, np.ndarray]:
    """A mask of the elements of `got` outside the tolerance of `exact`, which has the same shape, and the tolerance.
    `got` has a floating dtype."""
    dtype = got.dtype.name
    longer = reference_dtype(dtype)
    exact, magnitude = np.asarray(exact, longer), np.asarray(magnitude, longer)
    limit = tolerance(exact, magnitude, roundings, dtype, storage)
    largest = longer(ml_dtypes.finfo(got.dtype).max)
    wide = got.astype(longer)
    with np.errstate(invalid="ignore"):
        overflows = np.isinf(wide) & (np.sign(wide) == np.sign(exact))
        overflows &= np.abs(exact) + limit >= largest + ulp(largest, dtype) / 2
        return ~((np.abs(wide - exact) <= limit) | overflows), limit


def assert_accurate(
    got: np.ndarray,
    exact: Any,
    magnitude: Any,
    roundings: float,
    label: str = "",
    storage: tuple[Any, str] = (0, "float64"),
) -> None:
    """Every element of `got`, of a floating dtype, is within the tolerance of `exact`."""
    exact = np.asarray(exact)
    assert got.shape == exact.shape, f"{label}: shape {got.shape} instead of {exact.shape}"
    wrong, limit = inaccurate(got, exact, magnitude, roundings, storage)
    if wrong.any():
        first = np.unravel_index(np.argmax(wrong), wrong.shape)
        raise AssertionError(
            f"{label}: {wrong.sum()} of {wrong.size} wrong; at {tuple(map(int, first))}: got {got[first]!r}, "
            f"expected {exact[first]!r} within {limit[first]!r}"
        )


def assert_same_bits(got: np.ndarray, expected: np.ndarray, label: str = "") -> None:
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape), label
    different = bits(got) != bits(expected)
    if different.any():
        got, expected, different = map(np.atleast_1d, (got, expected, different))
        first = np.unravel_index(np.argmax(different), different.shape)
        raise AssertionError(
            f"{label}: {different.sum()} of {different.size} differ; at {tuple(map(int, first))}: "
            f"{got[first]!r} and {expected[first]!r}"
        )


def special_values(dtype: str) -> np.ndarray:
    """Special values representable in dtype, in float64."""
    info = ml_dtypes.finfo(numpy_dtype(dtype))
    largest, normal, subnormal = (float(x) for x in (info.max, info.smallest_normal, info.smallest_subnormal))
    between = float(numpy_dtype(dtype).type(normal / 2 + subnormal))
    finite = np.array([0.0, 1.0, 2.0, 0.5, largest, largest / 2, normal, subnormal, between])
    return np.concatenate([finite, -finite, [np.inf, -np.inf, np.nan]])


def numbers(shape: Sequence[int], random: np.random.Generator) -> np.ndarray:
    """Random numbers representable in every floating dtype, so that none is rounded."""
    return random.normal(size=tuple(shape)).astype(ml_dtypes.bfloat16).astype(np.float64)
