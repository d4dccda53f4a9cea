"""matmul and linear layers. The shape is M, N, K; the call is bound by arithmetic."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.operators.activations import bias_act, swiglu
from benchmarks.operators.record import Function, Input, Layout, Operator, Shape, scalar


def _a(case: Any) -> Layout:
    m, _, k = case.shape
    return Layout((k, m), 1) if case.transposes[0] else Layout((m, k), 0)


def _b(case: Any) -> Layout:
    _, n, k = case.shape
    return Layout((n, k) if case.transposes[1] else (k, n), None)


def _c(case: Any) -> Layout:
    m, n, _ = case.shape
    return Layout((m, n), 0)


def _row(case: Any) -> Layout:
    return Layout(case.shape[:1], 0)


def _statistic(case: Any) -> Layout:
    """A number for each row, which 16-bit inputs have in float32."""
    return Layout(case.shape[:1], 0, "float64" if case.dtype == "float64" else "float32")


def _classes(case: Any) -> int:
    return int(case.shape[1])


def _bias(case: Any) -> Layout:
    return Layout(case.shape[1:2], None)


def _weights(seed: int) -> Callable[[Shape], np.ndarray]:
    """Weights of a layer's usual size. Larger ones would hide its bias and the curvature of its activation."""
    return lambda shape: np.random.default_rng(seed).standard_normal(shape, np.float32) * shape[-1] ** -0.5


def _linear(n: Any) -> Function:
    rest = bias_act(n)
    return lambda x, weight, bias: rest(n.matmul(x, weight), bias)


def _gated_linear(n: Any) -> Function:
    rest = swiglu(n)
    return lambda x, gate_weight, up_weight: rest(n.matmul(x, gate_weight), n.matmul(x, up_weight))


def _torch_linear(torch: Any) -> Function:
    own = torch.nn.functional
    return lambda x, weight, bias: own.gelu(own.linear(x, weight, bias), approximate="tanh")


def _torch_gated_linear(torch: Any) -> Function:
    own = torch.nn.functional
    return lambda x, gate_weight, up_weight: own.silu(own.linear(x, gate_weight)) * own.linear(x, up_weight)


def _torch_linear_cross_entropy(torch: Any) -> Function:
    own = torch.nn.functional
    return lambda x, weight, labels: own.cross_entropy(own.linear(x, weight), labels)


def _quack_linear_cross_entropy(quack: Any) -> Function:
    # QuACK identifies a kernel by everything that its code refers to, including the DSL's logger. With DSL 4.7 it does
    # not import without this.
    setattr(logging.Logger, "__quack_semantic_key__", lambda logger: logger.name)  # noqa: B010
    # Imported by the call: if this module does not support the installed CUTLASS DSL, other modules still may.
    module = f"{quack.__name__}.linear_cross_entropy"
    return lambda x, weight, labels: import_module(module).chunked_linear_cross_entropy(x, weight, labels)


_INPUTS_OF_LABELS = (
    Input("x", _a),
    Input("weight", _b, values=_weights(0)),
    Input("labels", _row, gradient=False, classes=_classes),
)

OPERATORS = (
    Operator(
        "matmul",
        inputs=(Input("a", _a), Input("b", _b)),
        outputs={"out": _c},
        options=lambda case: dict(zip(("transpose_a", "transpose_b"), case.transposes, strict=True)),
        formula=lambda n: n.matmul,  # with the transposes of the case
    ),
    Operator(
        "linear",
        inputs=(Input("x", _a), Input("weight", _b, values=_weights(0)), Input("bias", _bias)),
        outputs={"out": _c},
        options=lambda case: {"activation": "gelu_tanh"},
        formula=_linear,
        torch=_torch_linear,
        floors=(1.02, 1.04),
    ),
    Operator(
        "gated_linear",
        inputs=(
            Input("x", _a),
            Input("gate_weight", _b, values=_weights(0)),
            Input("up_weight", _b, values=_weights(1)),
        ),
        outputs={"out": _c},
        formula=_gated_linear,
        torch=_torch_gated_linear,
    ),
    Operator(
        "linear_cross_entropy",
        inputs=_INPUTS_OF_LABELS,
        outputs={"out": scalar},
        mean=True,
        formula=lambda n: lambda x, weight, labels: n.cross_entropy(n.upcast(n.matmul(x, weight)), labels),
        torch=_torch_linear_cross_entropy,
        liger=lambda ops: (
            lambda x, weight, labels: ops.LigerFusedLinearCrossEntropyFunction.apply(x, weight, labels)[0]
        ),
        quack=_quack_linear_cross_entropy,
    ),
    Operator(
        "linear_log_prob",
        inputs=_INPUTS_OF_LABELS,
        outputs={"log_prob": _statistic, "lse": _statistic},
        formula=lambda n: lambda x, weight, labels: n.log_prob(n.upcast(n.matmul(x, weight)), labels),
    ),
    Operator(
        "linear_kl_div",
        inputs=(
            Input("x", _a),
            Input("weight", _b, values=_weights(0)),
            Input("target_x", _a, gradient=False),
            Input("target_weight", _b, gradient=False, values=_weights(1)),
        ),
        outputs={"out": scalar},
        mean=True,
        formula=lambda n: (
            lambda x, weight, target_x, target_weight: n.kl_div(
                n.upcast(n.matmul(x, weight)), n.upcast(n.matmul(target_x, target_weight))
            )
        ),
        liger=lambda ops: lambda *heads: ops.LigerFusedLinearJSDFunction.apply(*heads, None, 0.0),
    ),
)
