"""What each operator computes, over the functions `n` that a framework has, and the tensors that it takes.

A formula is what a user writes without fusedops. Compilers get it, and in float64 it is the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.case import Case

Function = Callable[..., Any]

# Operator -> its inputs, in order.
INPUTS = {
    "axpby": ("a", "x", "b"),
    "add": ("x", "y"),
    "scale": ("x", "factor"),
    "relu": ("x",),
    "polynomial_activation": ("x",),
    "matmul": ("a", "b"),
    "rms_norm": ("x", "weight"),
    "layer_norm": ("x", "weight", "bias"),
    "add_rms_norm": ("x", "residual", "weight"),
    "add_layer_norm": ("x", "residual", "weight", "bias"),
    "softmax": ("x",),
    "cross_entropy": ("logits", "labels"),
    "bias_act": ("x", "bias"),
    "swiglu": ("gate", "up"),
    "rope": ("x", "cos", "sin"),
}
NUMBERS = {"factor": 1.7, "a": 1.7}  # `a` is a tensor of one element
OPTIONS: dict[str, dict[str, Any]] = {"bias_act": {"activation": "gelu_tanh"}}
FIXED = ("factor", "labels", "cos", "sin")  # inputs without a gradient
WANTED = {operator: tuple(x for x in inputs if x not in FIXED) for operator, inputs in INPUTS.items()}
WANTED["axpby"] = ("a", "x")  # b's is the upstream gradient


@dataclass(frozen=True)
class Layout:
    shape: tuple[int, ...]
    rows: int | None  # the axis along which all tensors are cut into rows; None: all rows share this one


def layouts(case: Case) -> dict[str, Layout]:
    """Of the inputs that are tensors, and of the upstream gradients where the case has any."""
    names = [name for name in INPUTS[case.operator] if name != "factor"]
    found = {name: _layout(case, name) for name in names}
    if "backward" in case.variant:
        found.update((f"d{name}", _layout(case, name)) for name in outputs(case.operator) if _layout(case, name).shape)
    return found


def results(case: Case) -> list[Layout]:
    """Of what a contender's call returns: outputs, gradients, or both."""
    names = () if case.variant == "backward" else outputs(case.operator)
    names += WANTED[case.operator] if "backward" in case.variant else ()
    return [_layout(case, name) for name in names]


def outputs(operator: str) -> tuple[str, ...]:
    return ("out", "sum") if operator.startswith("add_") else ("out",)


def _layout(case: Case, name: str) -> Layout:
    shape = case.shape
    match case.operator, name:
        case "matmul", _:
            return _of_product(case, name)
        case ("axpby", "a") | ("cross_entropy", "out"):
            return Layout((), None)
        case _, "weight" | "bias":
            return Layout(shape[-1:], None)
        case _, "labels":
            return Layout(shape[:-1], 0)
        case _, "cos" | "sin":
            return Layout((shape[1], shape[3] // 2), 0)
        case "rope", _:
            return Layout(shape, 1)
    return Layout(shape, 0)


def _of_product(case: Case, name: str) -> Layout:
    m, n, k = case.shape
    transpose_a, transpose_b = case.transposes
    match name:
        case "a":
            return Layout((k, m), 1) if transpose_a else Layout((m, k), 0)
        case "b":
            return Layout((n, k) if transpose_b else (k, n), None)
    return Layout((m, n), 0)


def angles(name: str, layout: Layout) -> np.ndarray:
    """The cosines or sines of rotary embedding."""
    positions, pairs = layout.shape
    turns = np.outer(np.arange(positions), 10000.0 ** (-np.arange(pairs) / pairs))
    return np.cos(turns) if name == "cos" else np.sin(turns)


def formulas(n: Any) -> dict[str, Function]:
    """16-bit inputs are computed in float32 (`n.wide`) and rounded once, in x's dtype (`n.like`)."""

    def rms_norm(x: Any, weight: Any) -> Any:
        h = n.wide(x)
        return n.like(h * n.rsqrt(n.mean(h * h) + 1e-6) * n.wide(weight), x)

    def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
        h = n.wide(x)
        h = h - n.mean(h)
        return n.like(h * n.rsqrt(n.mean(h * h) + 1e-5) * n.wide(weight) + n.wide(bias), x)

    def add_rms_norm(x: Any, residual: Any, weight: Any) -> Any:
        total = x + residual
        return rms_norm(total, weight), total

    def add_layer_norm(x: Any, residual: Any, weight: Any, bias: Any) -> Any:
        total = x + residual
        return layer_norm(total, weight, bias), total

    def bias_act(x: Any, bias: Any) -> Any:
        h = n.wide(x) + n.wide(bias)
        return n.like(0.5 * h * (1 + n.tanh(0.7978845608028654 * (h + 0.044715 * h * h * h))), x)

    def swiglu(gate: Any, up: Any) -> Any:
        h = n.wide(gate)
        return n.like(h * n.sigmoid(h) * n.wide(up), gate)

    def rope(x: Any, cos: Any, sin: Any) -> Any:
        half = x.shape[-1] // 2
        a, b = n.wide(x[..., :half]), n.wide(x[..., half:])
        c, s = n.wide(cos)[:, None, :], n.wide(sin)[:, None, :]
        return n.like(n.join(a * c - b * s, b * c + a * s), x)

    return {
        "axpby": lambda a, x, b: a * x + b,
        "add": lambda x, y: x + y,
        "scale": lambda x, factor: x * factor,
        "relu": n.relu,
        "polynomial_activation": lambda x: x * x + x + 1,
        "rms_norm": rms_norm,
        "layer_norm": layer_norm,
        "add_rms_norm": add_rms_norm,
        "add_layer_norm": add_layer_norm,
        "softmax": n.softmax,
        "cross_entropy": lambda logits, labels: n.cross_entropy(n.wide(logits), labels),
        "bias_act": bias_act,
        "swiglu": swiglu,
        "rope": rope,
    }
