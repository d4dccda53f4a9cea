"""Normalizations of rows.

The formulas treat the statistics as functions of x, and give them no gradient of their own. Where the forward adds a
residual, x is the sum, whose upstream gradient `ds` is added to dx. With dropout it is named s, and its gradient is
given twice: to the residual as it is, and to x dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fusedops.gradients.composite import second_derivative
from fusedops.gradients.registry import Tensor, gradient


@gradient("rms_norm_backward", saves=("dy", "x", "weight", "rstd"))
def _rms_norm_backward(f: Any, c: Any, gdx: Tensor | None, gdweight: Tensor | None) -> Mapping[str, Any]:
    plain = _rms_norm(f, c, c.x)
    return {**second_derivative(f, c, plain, x=gdx, weight=gdweight), "ds": gdx if c.need_dx else None}


@gradient("dropout_add_rms_norm_backward", saves=("dy", "s", "weight", "rstd", "seed"))
def _dropout_add_rms_norm_backward(
    f: Any, c: Any, gdx: Tensor | None, gdresidual: Tensor | None, gdweight: Tensor | None
) -> Mapping[str, Any]:
    gs, plain = _of_sum(f, c, gdx, gdresidual), _rms_norm(f, c, c.s)
    return {**second_derivative(f, c, plain, s=gs, weight=gdweight), "ds": gs}


@gradient("layer_norm_backward", saves=("dy", "x", "weight", "bias", "rstd"))
def _layer_norm_backward(
    f: Any, c: Any, gdx: Tensor | None, gdweight: Tensor | None, gdbias: Tensor | None
) -> Mapping[str, Any]:
    plain = _layer_norm(f, c, c.x)
    gradients = second_derivative(f, c, plain, x=gdx, weight=gdweight, bias=gdbias)
    return {**gradients, "ds": gdx if c.need_dx else None}


@gradient("dropout_add_layer_norm_backward", saves=("dy", "s", "weight", "bias", "rstd", "seed"))
def _dropout_add_layer_norm_backward(
    f: Any, c: Any, gdx: Tensor | None, gdresidual: Tensor | None, gdweight: Tensor | None, gdbias: Tensor | None
) -> Mapping[str, Any]:
    gs, plain = _of_sum(f, c, gdx, gdresidual), _layer_norm(f, c, c.s)
    return {**second_derivative(f, c, plain, s=gs, weight=gdweight, bias=gdbias), "ds": gs}


def _rms_norm(f: Any, c: Any, at: Tensor) -> Callable[..., Tensor]:
    """The plain formula of the norm that had this input."""
    x = f.compute(at)
    eps = _eps(f, c, f.mean_last(x * x))

    def plain(f: Any, c: Any, weight: Tensor | None, **rows: Tensor) -> Tensor:
        (x,) = rows.values()
        y = x * f.rsqrt(f.mean_last(x * x) + eps)
        return y if weight is None else y * (weight + c.weight_offset)

    return plain


def _layer_norm(f: Any, c: Any, at: Tensor) -> Callable[..., Tensor]:
    centered = _centered(f, f.compute(at))
    eps = _eps(f, c, f.mean_last(centered * centered))

    def plain(f: Any, c: Any, weight: Tensor | None, bias: Tensor | None, **rows: Tensor) -> Tensor:
        (x,) = rows.values()
        centered = _centered(f, x)
        y = centered * f.rsqrt(f.mean_last(centered * centered) + eps)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    return plain


def _of_sum(f: Any, c: Any, gdx: Tensor | None, gdresidual: Tensor | None) -> Tensor | None:
    """What meets the gradient of s, of which dropout makes dx."""
    gdx, gdresidual = gdx if c.need_dx else None, gdresidual if c.need_dresidual else None
    if gdx is None or gdresidual is None:
        return gdresidual if gdx is None else f.dropout(gdx, c.seed, rate=c.rate)
    return f.dropout_add(gdx, gdresidual, c.seed, rate=c.rate)


def _centered(f: Any, x: Tensor) -> Tensor:
    return x - f.mean_last(x)


def _eps(f: Any, c: Any, mean_square: Tensor) -> Tensor:
    """The backward operators know rstd, not eps: what rstd holds beside the mean of squares, a constant."""
    rstd = f.expand_last(f.compute(c.rstd))
    return f.constant(1.0 / (rstd * rstd) - mean_square)
