"""Comparing a converted model with what it was before, and both with the same model in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def assert_as_accurate(got: list[np.ndarray], plain: list[np.ndarray], exact: list[np.ndarray], dtype: str) -> None:
    """What fusedops computes errs at most twice as much as what the framework computes, seen over all results.

    Both round at the same places, fusedops never more often, and the errors of many roundings are alike in size. Where
    the framework's happen to be none, one rounding in dtype is allowed.
    """
    for ours, theirs in zip(got, plain, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    sizes = np.array([_size(truth) for truth in exact])
    ours, theirs = (np.array([_size(x - y) for x, y in zip(results, exact, strict=True)]) for results in (got, plain))
    # An exact zero, such as the gradient of a bias of keys in attention: what is computed is nothing but errors.
    zero = theirs > sizes
    nothing = (theirs == 0) & (sizes == 0)
    assert not ours[nothing].any()
    ours, theirs, sizes, zero = (x[~nothing] for x in (ours, theirs, sizes, zero))
    rounding = float(ml_dtypes.finfo(dtype).eps)
    if not zero.all():
        error, limit = (_size(errors[~zero] / sizes[~zero]) for errors in (ours, theirs))
        assert error <= 2 * limit + rounding, f"error {error}, of the framework's own code {limit}"
    if zero.any():  # its terms, which cancel, are rounded: they have the size of other results
        error, limit = (_size(errors[zero]) for errors in (ours, theirs))
        allowed = 2 * limit + rounding * (float(np.median(sizes[~zero])) if not zero.all() else 0)
        assert error <= allowed, f"error {error} of what is zero, of the framework's own code {limit}"


def assert_each_close(got: list[np.ndarray], expected: list[np.ndarray], rtol: float, terms: int) -> None:
    """Each array to its own size, but for the rounding of its sums, which are of so many terms.

    Terms that cancel have the size of other results.
    """
    sizes = [_size(array) for array in expected]
    for ours, theirs, size in zip(got, expected, sizes, strict=True):
        floor = terms * float(ml_dtypes.finfo(theirs.dtype).eps) * float(np.median(sizes))
        error = _size(ours - theirs)
        assert error <= rtol * size + floor, f"error {error} of {size}, with a floor of {floor}"


def _size(array: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(array.astype(np.float64)))))


def assert_losses_overlap(got: list[float], plain: list[float], dtype: str, steps: int) -> None:
    """Each step adds at most one rounding in dtype: those of the many terms of a loss average out."""
    np.testing.assert_allclose(got, plain, rtol=(1 + steps) * float(ml_dtypes.finfo(dtype).eps))
