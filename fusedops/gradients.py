"""The derivative of every operator, written once for both frameworks.

A formula is a vector-Jacobian product: `formula(f, c, *dy)` gets the upstream gradient of each output and returns the
gradient of each differentiable input by name. A value may be a function, which is called only if that gradient is
wanted; a missing name means zero.

`f` holds every operator (`f.axpby(a, x, b)`, differentiable itself, which makes the second derivative) and a few tensor
functions that both frameworks have: `multiply`, `reshape_rows`, `transpose`, `rank`. `c` holds what the operator was
called with, by the names of its declaration: the inputs and outputs named in `saves`, the attributes, and
`c.wanted(input)`. An upstream gradient is None where nothing flows back.

Backward operators are linear in `dy`. Forward mode is therefore the gradient of a formula with respect to `dy`, and
needs no formula of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Tensor = Any
Formula = Callable[..., Mapping[str, Any]]


@dataclass(frozen=True)
class Gradient:
    formula: Formula
    saves: tuple[str, ...]


GRADIENTS: dict[str, Gradient] = {}


def gradient(operator: str, *, saves: tuple[str, ...] = ()) -> Callable[[Formula], Formula]:
    """Declares the gradient of `operator`, and which of its inputs and outputs the formula reads."""

    def declare(formula: Formula) -> Formula:
        GRADIENTS[operator] = Gradient(formula, saves)
        return formula

    return declare


def gradient_of(operator: str) -> Gradient:
    """The gradient of a declared operator."""
    if operator not in GRADIENTS:
        raise NotImplementedError(f"fusedops.{operator}: fusedops/gradients.py must declare its gradient; it has none")
    return GRADIENTS[operator]


@gradient("add")
def _add(f: Any, c: Any, dy: Tensor) -> Mapping[str, Any]:
    return {"x": dy, "y": dy}


@gradient("axpby", saves=("a", "x"))
def _axpby(f: Any, c: Any, dy: Tensor) -> Mapping[str, Any]:
    return {**_scalar_times_tensor(f, c, dy, "a"), "b": dy}


@gradient("scale", saves=("factor", "x"))
def _scale(f: Any, c: Any, dy: Tensor) -> Mapping[str, Any]:
    return _scalar_times_tensor(f, c, dy, "factor")


def _scalar_times_tensor(f: Any, c: Any, dy: Tensor, scalar: str) -> Mapping[str, Any]:
    """Of a·x: both gradients from one pass over dy and x."""
    a = getattr(c, scalar)
    if not c.wanted(scalar):
        return {"x": lambda: f.scale(dy, a)}
    da, dx = f.axpby_backward(dy, a, c.x, need_dx=c.wanted("x"))
    return {scalar: da, "x": dx}


@gradient("axpby_backward", saves=("dy", "a", "x"))
def _axpby_backward(f: Any, c: Any, gda: Tensor | None, gdx: Tensor | None) -> Mapping[str, Any]:
    """Of da = Σ dy·x and dx = a·dy."""
    if not c.need_dx:
        gdx = None
    gradients: dict[str, Any] = {}
    if gda is not None:
        gradients["x"] = lambda: f.scale(c.dy, gda)
        gradients["dy"] = lambda: f.scale(c.x, gda)
    if gdx is not None:
        gradients["a"] = lambda: f.axpby_backward(gdx, c.a, c.dy, need_dx=False)[0]
        gradients["dy"] = lambda: f.scale(gdx, c.a)
    if gda is not None and gdx is not None:
        gradients["dy"] = lambda: f.axpby(gda, c.x, f.scale(gdx, c.a))
    return gradients


@gradient("relu", saves=("y",))
def _relu(f: Any, c: Any, dy: Tensor) -> Mapping[str, Any]:
    return {"x": f.relu_backward(dy, c.y)}


@gradient("relu_backward", saves=("y",))
def _relu_backward(f: Any, c: Any, gdx: Tensor) -> Mapping[str, Any]:
    return {"dy": f.relu_backward(gdx, c.y)}


@gradient("polynomial_activation", saves=("x",))
def _polynomial_activation(f: Any, c: Any, dy: Tensor) -> Mapping[str, Any]:
    return {"x": f.polynomial_activation_backward(dy, c.x, coefficients=c.coefficients)}


@gradient("polynomial_activation_backward", saves=("dy", "x"))
def _polynomial_activation_backward(f: Any, c: Any, gdx: Tensor) -> Mapping[str, Any]:
    """Of dx = dy·p'(x): p'(x)·gdx for dy, and dy·gdx·p''(x) for x."""
    slopes = [k * coefficient for k, coefficient in enumerate(c.coefficients)][1:] or [0.0]
    return {
        "dy": lambda: f.polynomial_activation_backward(gdx, c.x, coefficients=c.coefficients),
        "x": lambda: f.polynomial_activation_backward(f.multiply(gdx, c.dy), c.x, coefficients=slopes),
    }


@gradient("matmul", saves=("a", "b"))
def _matmul(f: Any, c: Any, dy: Tensor) -> Mapping[str, Any]:
    """Of C = A @ B, with A = op(a), B = op(b): dA = dC @ Bᵀ and dB = Aᵀ @ dC, each transposed back if op does."""
    ta, tb = c.transpose_a, c.transpose_b
    one_b = f.rank(c.b) == 2  # for all the matrices of a

    def da() -> Tensor:
        if not ta:
            return f.matmul(dy, c.b, transpose_b=not tb)
        if one_b and f.rank(dy) != 2:
            return f.transpose(f.matmul(dy, c.b, transpose_b=not tb))
        return f.matmul(c.b, dy, transpose_a=tb, transpose_b=True)

    def db() -> Tensor:
        a, dc, a_transposed = c.a, dy, ta
        if one_b and f.rank(dy) != 2:  # the sum over the leading dimensions is part of the product
            a, dc, a_transposed = f.reshape_rows(f.transpose(a) if ta else a), f.reshape_rows(dy), False
        if tb:
            return f.matmul(dc, a, transpose_a=True, transpose_b=a_transposed)
        return f.matmul(a, dc, transpose_a=not a_transposed)

    return {"a": da, "b": db}
