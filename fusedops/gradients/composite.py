"""Derivatives of operators that have a plain formula, taken by the framework itself.

A backward operator is the vector-Jacobian product of its forward. Its own derivative need not be fast, so nobody writes
it: the forward's plain formula, over the functions of `f`, is differentiated twice.

    def plain(f, c, x):
        return x * x

    @gradient("square_backward", saves=("dy", "x"))
    def _square_backward(f, c, gdx):
        return second_derivative(f, c, plain, x=gdx)

Plain formulas compute in the compute dtype; each gradient comes back in the dtype of its input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fusedops.gradients.registry import Tensor


def second_derivative(
    f: Any, c: Any, forward: Callable[..., Tensor], dy: str = "dy", **upstream: Tensor | None
) -> dict[str, Tensor]:
    """The gradient of a backward operator, from the plain formula `forward(f, c, **inputs)` of its forward.

    Args:
        dy: the backward operator's name for the upstream gradient of its forward.
        upstream: by the name of each input of `forward`, the upstream gradient of that input's gradient: None where
            nothing flows. Not looked at for an absent input, which has no gradient.
    """
    flowing = {
        name: gradient for name, gradient in upstream.items() if gradient is not None and getattr(c, name) is not None
    }

    def backward(**inputs: Tensor | None) -> tuple[Tensor, ...]:
        upstream_of_forward = inputs.pop(dy)

        def of_flowing(*values: Tensor) -> Tensor:
            return forward(f, c, **{**inputs, **dict(zip(flowing, values, strict=True))})

        return tuple(f.vjp(of_flowing, [inputs[name] for name in flowing], upstream_of_forward))

    return derivative(f, c, backward, (dy, *upstream), tuple(flowing.values()))


def derivative(
    f: Any,
    c: Any,
    plain: Callable[..., tuple[Tensor, ...]],
    names: tuple[str, ...],
    upstream: tuple[Tensor, ...],
) -> dict[str, Tensor]:
    """The gradient of the named inputs, those that are wanted, from the plain formula `plain(**inputs) -> outputs`."""
    given: Mapping[str, Tensor | None] = {name: getattr(c, name) for name in names}
    inputs = {name: x if x is None else f.compute(x) for name, x in given.items()}
    wanted = [name for name in names if given[name] is not None and c.wanted(name)]
    if not wanted or not upstream:
        return {}

    def of_wanted(*values: Tensor) -> tuple[Tensor, ...]:
        return plain(**{**inputs, **dict(zip(wanted, values, strict=True))})

    gradients = f.vjp(of_wanted, [inputs[name] for name in wanted], tuple(map(f.compute, upstream)))
    return {name: f.cast(gradient, given[name]) for name, gradient in zip(wanted, gradients, strict=True)}
