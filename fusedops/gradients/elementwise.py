"""Elementwise operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusedops.gradients.registry import Tensor, gradient


@gradient("axpby_backward", saves=("dy", "a", "x"))
def _axpby_backward(f: Any, c: Any, gda: Tensor | None, gdx: Tensor | None) -> Mapping[str, Any]:
    """The gradients of da = Σ dy·x and dx = a·dy."""

    def both() -> Tensor:
        a = c.a if isinstance(c.a, float) else f.compute(c.a)
        return f.cast(f.axpby(f.compute(gda), f.compute(c.x), f.scale(f.compute(gdx), a)), c.dy)

    gradients: dict[str, Any] = {}
    if gda is not None:
        gradients["x"] = lambda: f.scale(c.dy, gda)
        gradients["dy"] = lambda: f.scale(c.x, gda)
    if gdx is not None:
        gradients["a"] = lambda: f.axpby_backward(gdx, c.a, c.dy, need_dx=False)[0]
        gradients["dy"] = lambda: f.scale(gdx, c.a)
    if gda is not None and gdx is not None:
        gradients["dy"] = both
    return gradients


@gradient("relu_backward", saves=("y",))
def _relu_backward(f: Any, c: Any, gdx: Tensor) -> Mapping[str, Any]:
    return {"dy": f.relu_backward(gdx, c.y)}


@gradient("polynomial_activation_backward", saves=("dy", "x"))
def _polynomial_activation_backward(f: Any, c: Any, gdx: Tensor) -> Mapping[str, Any]:
    """The gradients of dx = dy·p'(x): p'(x)·gdx for dy, and dy·gdx·p''(x) for x."""
    slopes = [k * coefficient for k, coefficient in enumerate(c.coefficients)][1:] or [0.0]

    def of_x() -> Tensor:
        product = f.multiply(f.compute(gdx), f.compute(c.dy))
        return f.cast(f.polynomial_activation_backward(product, f.compute(c.x), coefficients=slopes), c.x)

    return {
        "dy": lambda: f.polynomial_activation_backward(gdx, c.x, coefficients=c.coefficients),
        "x": of_x,
    }
