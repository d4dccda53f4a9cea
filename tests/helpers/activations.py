"""The activations in any floating type, the magnitudes of their rounding errors, and their numbers of roundings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.helpers.numerics import LONGEST

Array = np.ndarray

CENTRES = np.arange(-208, 209) * LONGEST(1 / 32)  # to 6.5, and 1 - erf(6.5) is 4e-20


def _erf_around_centres() -> list[Array]:
    """The coefficients of erf's power series around each centre, the highest first, enough for LONGEST's digits.

    erf at a centre: a series without alternating signs, Abramowitz and Stegun, 7.1.6. The slope g of erf is a Gaussian,
    whose coefficients follow from g' = -2x g.
    """
    gaussian = np.exp(-CENTRES * CENTRES) * 2 / np.sqrt(np.arccos(LONGEST(-1)))
    terms = [CENTRES * gaussian]
    for n in range(1, 180):
        terms.append(terms[-1] * (2 * CENTRES * CENTRES / (2 * n + 1)))
    slopes = [gaussian, -2 * CENTRES * gaussian]
    for n in range(1, 12):
        slopes.append(-2 * (CENTRES * slopes[n] + slopes[n - 1]) / (n + 1))
    return [sum(terms[::-1]), *(slope / (n + 1) for n, slope in enumerate(slopes))][::-1]


ERF = _erf_around_centres()


def erf(x: Array) -> Array:
    """By its power series around the nearest centre, in the longest type."""
    z = np.clip(np.asarray(x, LONGEST), CENTRES[0], CENTRES[-1])
    nearest = np.rint(np.where(np.isnan(z), 0, z) * 32).astype(int) + len(CENTRES) // 2
    distance, total = z - CENTRES[nearest], 0
    for coefficients in ERF:
        total = total * distance + coefficients[nearest]
    return np.asarray(total, np.asarray(x).dtype)


def logistic(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def normal_density(x: Array) -> Array:
    """The density of the normal distribution."""
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(x * x / -2) / np.sqrt(2 * np.arccos(np.asarray(-1, x.dtype)))


def normal(x: Array) -> Array:
    """The distribution function of the normal distribution."""
    return (1 + erf(x * np.sqrt(np.asarray(0.5, x.dtype)))) / 2


def inner(x: Array) -> Array:
    """2u of gelu's approximation, x (1 + tanh(u)) / 2."""
    with np.errstate(over="ignore"):
        return np.sqrt(8 / np.arccos(np.asarray(-1, x.dtype))) * (x + np.asarray(0.044715, x.dtype) * x**3)


def inner_slope(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.sqrt(8 / np.arccos(np.asarray(-1, x.dtype))) * (1 + np.asarray(3 * 0.044715, x.dtype) * x**2)


@dataclass(frozen=True)
class Activation:
    """`value` and `slope`, each with the magnitude of its errors and its number of roundings.

    A kernel's exponential errs by up to 4 half ulps, its reciprocal by 2 (CUDA's tables of accuracy), each product or
    sum by one. The two forms of gelu are accurate to a few ulps of |x| (1 + |2 phi - 1|) / 2, not of their small tails:
    rounding the exponent x² / 2 changes e^(-x²/2) by that much.
    """

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    value_size: Callable[[Array], Array]
    slope_size: Callable[[Array], Array]
    value_roundings: int
    slope_roundings: int
    curvature: float  # the largest |second derivative|


def _spread(p: Array) -> Array:
    return (1 + np.abs(2 * p - 1)) / 2


def _gelu_tanh_terms(x: Array) -> tuple[Array, Array]:
    with np.errstate(invalid="ignore"):
        return logistic(inner(x)), x * logistic(inner(x)) * logistic(-inner(x)) * inner_slope(x)


def _silu_terms(x: Array) -> tuple[Array, Array]:
    return logistic(x), x * logistic(x) * logistic(-x)


def _tanh_slope(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1 / np.cosh(x) ** 2


ACTIVATIONS = {
    "identity": Activation(lambda x: x, np.ones_like, np.abs, np.ones_like, 0, 0, 0.0),
    "relu": Activation(
        lambda x: np.where(x <= 0, np.zeros_like(x), x),  # NaN propagates
        lambda x: np.where(x <= 0, np.zeros_like(x), np.ones_like(x)),
        lambda x: np.maximum(x, 0),
        lambda x: np.where(x <= 0, np.zeros_like(x), np.ones_like(x)),
        0,
        0,
        0.0,  # no curvature beside the jump
    ),
    "gelu": Activation(
        lambda x: x * normal(x),
        lambda x: normal(x) + x * normal_density(x),
        lambda x: np.abs(x) * _spread(normal(x)),
        lambda x: _spread(normal(x)) + np.abs(x) * normal_density(x),
        18,
        20,
        0.8,
    ),
    "gelu_tanh": Activation(
        lambda x: x * logistic(inner(x)),
        lambda x: sum(_gelu_tanh_terms(x)),
        lambda x: np.abs(x) * _spread(logistic(inner(x))),
        lambda x: _spread(logistic(inner(x))) + np.abs(_gelu_tanh_terms(x)[1]),
        14,
        18,
        0.81,
    ),
    "silu": Activation(
        lambda x: x * logistic(x),
        lambda x: sum(_silu_terms(x)),
        lambda x: np.abs(x) * logistic(x),
        lambda x: sum(np.abs(_silu_terms(x))),
        9,
        14,
        0.5,
    ),
    "sigmoid": Activation(
        logistic,
        lambda x: logistic(x) * logistic(-x),
        logistic,
        lambda x: logistic(x) * logistic(-x),
        8,
        12,
        0.1,
    ),
    "tanh": Activation(np.tanh, _tanh_slope, lambda x: np.abs(np.tanh(x)), _tanh_slope, 12, 14, 0.77),
}
