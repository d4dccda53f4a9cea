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
    for chosen, scales in ((~zero, sizes), (zero, theirs)):
        if chosen.any():
            error, limit = (_size(errors[chosen] / scales[chosen]) for errors in (ours, theirs))
            assert error <= 2 * limit + float(ml_dtypes.finfo(dtype).eps), (
                f"error {error}, of the framework's own code {limit}"
            )


def _size(array: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(array.astype(np.float64)))))


def assert_losses_overlap(got: list[float], plain: list[float], dtype: str, steps: int) -> None:
    """Each step adds at most one rounding in dtype: those of the many terms of a loss average out."""
    np.testing.assert_allclose(got, plain, rtol=(1 + steps) * float(ml_dtypes.finfo(dtype).eps))
