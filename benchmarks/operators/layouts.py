"""What each operator takes and returns, for both frameworks: names, shapes, and which of them rows share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases.case import LLAMA, Case

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
    LLAMA: (),  # draws its own
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
    if operator == LLAMA:
        return ()
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


def drawn(case: Case, draw: Callable[[Case, str, Layout], Any]) -> dict[str, Any]:
    """All that a call takes, in order, then the upstream gradients."""
    values: dict[str, Any] = {name: NUMBERS.get(name) for name in INPUTS[case.operator]}
    values.update((name, draw(case, name, layout)) for name, layout in layouts(case).items())
    return values


def dtype_of(case: Case, name: str) -> str:
    return case.parameters if case.parameters and name in ("weight", "bias") else case.dtype


def public(package: Any, case: Case) -> Function:
    """The function of `fusedops.torch` or `fusedops.tf`, with its options."""
    options = dict(OPTIONS.get(case.operator, {}))
    if case.operator == "matmul":
        options["transpose_a"], options["transpose_b"] = case.transposes
    function = getattr(package, case.operator)
    return partial(function, **options) if options else function


def angles(name: str, layout: Layout) -> np.ndarray:
    """The cosines or sines of rotary embedding."""
    positions, pairs = layout.shape
    turns = np.outer(np.arange(positions), 10000.0 ** (-np.arange(pairs) / pairs))
    return np.cos(turns) if name == "cos" else np.sin(turns)
