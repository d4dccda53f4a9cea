"""Normalizations of rows.

The statistics are saved outputs and get no gradient: the formulas are total in x. `s = x + residual`, the second output
of the variants with a residual, stands in the place of x; its upstream gradient, `ds`, is added to that of x.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusedops.gradients.composite import second_derivative
from fusedops.gradients.registry import Tensor, gradient


@gradient("rms_norm", saves=("x", "weight", "rstd"))
def _rms_norm(f: Any, c: Any, dy: Tensor, drstd: None) -> Mapping[str, Any]:
    dx, dweight = _rms_norm_gradients(f, c, dy, c.x, None, c.wanted("x"))
    return {"x": dx, "weight": dweight}


@gradient("add_rms_norm", saves=("s", "weight", "rstd"))
def _add_rms_norm(f: Any, c: Any, dy: Tensor | None, ds: Tensor | None, drstd: None) -> Mapping[str, Any]:
    if dy is None:
        return {"x": ds, "residual": ds}
    dx, dweight = _rms_norm_gradients(f, c, dy, c.s, ds, c.wanted("x") or c.wanted("residual"))
    return {"x": dx, "residual": dx, "weight": dweight}


def _rms_norm_gradients(f: Any, c: Any, dy: Tensor, x: Tensor, ds: Tensor | None, need_dx: bool) -> Any:
    wanted = {"need_dx": need_dx, "need_dweight": c.wanted("weight")}
    return f.rms_norm_backward(dy, x, c.weight, c.rstd, ds, weight_offset=c.weight_offset, **wanted)


@gradient("rms_norm_backward", saves=("dy", "x", "weight", "rstd"))
def _rms_norm_backward(f: Any, c: Any, gdx: Tensor | None, gdweight: Tensor | None) -> Mapping[str, Any]:
    x = f.compute(c.x)
    eps = _eps(f, c, f.mean_last(x * x))

    def plain(f: Any, c: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        y = x * f.rsqrt(f.mean_last(x * x) + eps)
        return y if weight is None else y * (weight + c.weight_offset)

    return {**second_derivative(f, c, plain, x=gdx, weight=gdweight), "ds": gdx if c.need_dx else None}


@gradient("layer_norm", saves=("x", "weight", "bias", "mean", "rstd"))
def _layer_norm(f: Any, c: Any, dy: Tensor, dmean: None, drstd: None) -> Mapping[str, Any]:
    dx, dweight, dbias = _layer_norm_gradients(f, c, dy, c.x, None, c.wanted("x"))
    return {"x": dx, "weight": dweight, "bias": dbias}


@gradient("add_layer_norm", saves=("s", "weight", "bias", "mean", "rstd"))
def _add_layer_norm(
    f: Any, c: Any, dy: Tensor | None, ds: Tensor | None, dmean: None, drstd: None
) -> Mapping[str, Any]:
    if dy is None:
        return {"x": ds, "residual": ds}
    dx, dweight, dbias = _layer_norm_gradients(f, c, dy, c.s, ds, c.wanted("x") or c.wanted("residual"))
    return {"x": dx, "residual": dx, "weight": dweight, "bias": dbias}


def _layer_norm_gradients(f: Any, c: Any, dy: Tensor, x: Tensor, ds: Tensor | None, need_dx: bool) -> Any:
    wanted = {"need_dx": need_dx, "need_dweight": c.wanted("weight"), "need_dbias": c.wanted("bias")}
    return f.layer_norm_backward(dy, x, c.weight, c.bias, c.mean, c.rstd, ds, **wanted)


@gradient("layer_norm_backward", saves=("dy", "x", "weight", "bias", "rstd"))
def _layer_norm_backward(
    f: Any, c: Any, gdx: Tensor | None, gdweight: Tensor | None, gdbias: Tensor | None
) -> Mapping[str, Any]:
    centered = _centered(f, f.compute(c.x))
    eps = _eps(f, c, f.mean_last(centered * centered))

    def plain(f: Any, c: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        centered = _centered(f, x)
        y = centered * f.rsqrt(f.mean_last(centered * centered) + eps)
        y = y if weight is None else y * weight
        return y if bias is None else y + bias

    return {
        **second_derivative(f, c, plain, x=gdx, weight=gdweight, bias=gdbias),
        "ds": gdx if c.need_dx else None,
    }


def _centered(f: Any, x: Tensor) -> Tensor:
    return x - f.mean_last(x)


def _eps(f: Any, c: Any, mean_square: Tensor) -> Tensor:
    """The backward operators know rstd, not eps: what rstd holds beside the mean of squares, a constant."""
    rstd = f.expand_last(f.compute(c.rstd))
    return f.constant(1.0 / (rstd * rstd) - mean_square)
