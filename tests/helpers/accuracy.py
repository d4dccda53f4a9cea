"""Compares a model before and after conversion, and both with the same model in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def assert_as_accurate(got: list[np.ndarray], plain: list[np.ndarray], exact: list[np.ndarray], dtype: str) -> None:
    """The errors of fusedops are at most twice the framework's, over all results.

    Both round in the same places, fusedops never more often, and many rounding errors have similar sizes. One rounding
    in dtype is allowed if the framework's error happens to be zero.
    """
    for ours, theirs in zip(got, plain, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    sizes = np.array([_size(truth) for truth in exact])
    ours, theirs = (np.array([_size(x - y) for x, y in zip(results, exact, strict=True)]) for results in (got, plain))
    # An exact zero, such as the gradient of a key bias in attention: the computed value consists of errors alone.
    zero = theirs > sizes
    nothing = (theirs == 0) & (sizes == 0)
    assert not ours[nothing].any()
    ours, theirs, sizes, zero = (x[~nothing] for x in (ours, theirs, sizes, zero))
    rounding = float(ml_dtypes.finfo(dtype).eps)
    if not zero.all():
        error, limit = (_size(errors[~zero] / sizes[~zero]) for errors in (ours, theirs))
        assert error <= 2 * limit + rounding, f"error {error}, of the framework's own code {limit}"
    if zero.any():  # its terms cancel, and have the size of other results
        error, limit = (_size(errors[zero]) for errors in (ours, theirs))
        allowed = 2 * limit + rounding * (float(np.median(sizes[~zero])) if not zero.all() else 0)
        assert error <= allowed, f"error {error} of what is zero, of the framework's own code {limit}"


def assert_as_stable(
    got: list[np.ndarray], plain: list[np.ndarray], exact: list[np.ndarray], rounded: list[list[np.ndarray]], dtype: str
) -> None:
    """The same, where each error is relative to that of a correct computation in dtype.

    Errors relative to the results would be those of a few ill-conditioned ones alone, such as the gradients of queries
    and keys if the probabilities are nearly equal, and a fault elsewhere would be hidden.

    Args:
        rounded: the results of the float64 model with random roundings in dtype, several times.
    """
    unit = float(ml_dtypes.finfo(dtype).eps) / 2
    ours, theirs = [], []
    for i, truth in enumerate(exact):
        assert (got[i].dtype, got[i].shape) == (plain[i].dtype, plain[i].shape)
        scale = _size(np.array([_size(results[i] - truth) for results in rounded] + [unit * _size(truth)]))
        if scale:
            ours.append(_size(got[i] - truth) / scale)
            theirs.append(_size(plain[i] - truth) / scale)
        else:
            assert not got[i].any()
    error, limit = (_size(np.array(errors)) for errors in (ours, theirs))
    assert error <= 2 * limit, f"errors of {error} roundings, of the framework's own code {limit}"


def assert_each_close(got: list[np.ndarray], expected: list[np.ndarray], rtol: float, terms: int) -> None:
    """Each array is compared relative to its largest element, plus the rounding of sums of `terms` terms.

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
    """Each step adds at most one rounding in dtype: the roundings of a loss's many terms average out."""
    np.testing.assert_allclose(got, plain, rtol=(1 + steps) * float(ml_dtypes.finfo(dtype).eps))
