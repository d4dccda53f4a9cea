"""Normalizations of rows.

The formulas treat the statistics as functions of x, without gradients of their own. Where the forward adds a residual,
x is the sum, and its upstream gradient `ds` is added to dx.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusedops.gradients.composite import second_derivative
from fusedops.gradients.registry import Tensor, gradient


@gradient("rms_norm_backward", saves=("dy", "x", "weight", "rstd", "seed"))
def _rms_norm_backward(
    f: Any, c: Any, gdx: Tensor | None, gdweight: Tensor | None, gdropped_dx: Tensor | None
) -> Mapping[str, Any]:
    gdx = _with_dropped(f, c, gdx, gdropped_dx)
    x = f.compute(c.x)
    eps = _eps(f, c, f.mean_last(x * x))

    def plain(f: Any, c: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        return _rms_norm(f, c, x, weight, eps)

    return {**second_derivative(f, c, plain, x=gdx, weight=gdweight), "ds": gdx}


@gradient("rms_norm_rope_backward", saves=("dy", "x", "weight", "cos", "sin", "rstd"))
def _rms_norm_rope_backward(f: Any, c: Any, gdx: Tensor | None, gdweight: Tensor | None) -> Mapping[str, Any]:
    x = f.compute(c.x)
    eps = _eps(f, c, f.mean_last(x * x))
    cos, sin = f.compute(c.cos), f.compute(c.sin)

    def plain(f: Any, c: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        y = _rms_norm(f, c, x, weight, eps)
        return f.rope(y, cos, sin, seq_dim=c.seq_dim, interleaved=c.interleaved, inverse=False)

    return second_derivative(f, c, plain, x=gdx, weight=gdweight)


@gradient("layer_norm_backward", saves=("dy", "x", "weight", "bias", "rstd", "seed"))
def _layer_norm_backward(
    f: Any,
    c: Any,
    gdx: Tensor | None,
    gdweight: Tensor | None,
    gdbias: Tensor | None,
    gdropped_dx: Tensor | None,
) -> Mapping[str, Any]:
    gdx = _with_dropped(f, c, gdx, gdropped_dx)
    centered = _centered(f, f.compute(c.x))
    eps = _eps(f, c, f.mean_last(centered * centered))

    def plain(f: Any, c: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        centered = _centered(f, x)
        y = centered * f.rsqrt(f.mean_last(centered * centered) + eps)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    return {**second_derivative(f, c, plain, x=gdx, weight=gdweight, bias=gdbias), "ds": gdx}


def _with_dropped(f: Any, c: Any, gdx: Tensor | None, gdropped_dx: Tensor | None) -> Tensor | None:
    """The upstream gradient of dx, including the part that arrives through dropped_dx."""
    if c.seed is None or gdropped_dx is None:
        return gdx
    if gdx is None:
        return f.dropout(gdropped_dx, c.seed, rate=c.dropout)
    return f.dropout_add(gdropped_dx, gdx, c.seed, rate=c.dropout)


def _rms_norm(f: Any, c: Any, x: Tensor, weight: Tensor | None, eps: Tensor) -> Tensor:
    y = x * f.rsqrt(f.mean_last(x * x) + eps)
    return y if weight is None else y * (weight + c.weight_offset)


def _centered(f: Any, x: Tensor) -> Tensor:
    return x - f.mean_last(x)


def _eps(f: Any, c: Any, mean_square: Tensor) -> Tensor:
    """eps as a constant, recovered from rstd: backward operators get rstd, not eps."""
    rstd = f.expand_last(f.compute(c.rstd))
    return f.constant(1.0 / (rstd * rstd) - mean_square)
