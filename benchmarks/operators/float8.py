"""Norms and activations with results in 8 bits and a scale for each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.operators.activations import bias_act, swiglu
from benchmarks.operators.normalization import BIAS, WEIGHT, layer_norm, of_sum, plain_rms_norm
from benchmarks.operators.record import Function, Input, Layout, Operator, whole

LARGEST = 448.0  # of float8_e4m3fn


def _of_rows(case: Any) -> Layout:
    return Layout((*case.shape[:-1], 1), 0)


def _rounded(of_wide: Callable[[Any], Function]) -> Callable[[Any], Function]:
    """A formula with its first result in 8 bits, then the scale, then the other results."""

    def formula(n: Any) -> Function:
        wide = of_wide(n)

        def function(*inputs: Any) -> Any:
            found = wide(*inputs)
            y, *rest = found if isinstance(found, tuple) else (found,)
            h = n.upcast(y)
            scale = n.largest(h) / LARGEST
            return n.float8(h / scale), scale, *rest

        return function

    return formula


# x is read and half as many bytes are written. Baselines round twice, to 16 bits and to 8.
ALL: dict[str, Any] = {"outputs": {"out": whole, "scale": _of_rows}, "in_8_bits": True, "floors": (1.05, 0.0)}

OPERATORS = (
    Operator(
        "rms_norm_float8",
        inputs=(Input("x"), WEIGHT),
        moves=(1.5, 0),
        operations=(6, 0),
        formula=_rounded(plain_rms_norm),
        **ALL,
    ),
    Operator(
        "layer_norm_float8",
        inputs=(Input("x"), WEIGHT, BIAS),
        moves=(1.5, 0),
        operations=(9, 0),
        formula=_rounded(layer_norm),
        **ALL,
    ),
    Operator(
        "add_rms_norm_float8",
        inputs=(Input("x"), Input("residual"), WEIGHT),
        moves=(3.5, 0),
        operations=(7, 0),
        formula=_rounded(lambda n: of_sum(plain_rms_norm(n))),
        **{**ALL, "outputs": {**ALL["outputs"], "sum": whole}},
    ),
    Operator(
        "bias_act_float8",
        inputs=(Input("x"), Input("bias", BIAS.layout, parameter=True)),
        options=lambda case: {"activation": "gelu_tanh"},
        moves=(1.5, 0),
        operations=(12, 0),
        formula=_rounded(bias_act),
        **ALL,
    ),
    Operator(
        "gated_act_float8",
        inputs=(Input("gate"), Input("up")),
        moves=(2.5, 0),
        operations=(5, 0),
        formula=_rounded(swiglu),
        **ALL,
    ),
)
