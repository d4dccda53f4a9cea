"""Derivatives of operators with a plain formula, taken by the framework's autograd.

A backward operator is the vector-Jacobian product of its forward. Its own derivative need not be fast, so the forward's
plain formula, over the functions of `f`, is differentiated twice:

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
    f: Any, c: Any, forward: Callable[..., Any], dy: tuple[str, ...] = ("dy",), **upstream: Tensor | None
) -> dict[str, Tensor]:
    """The gradient of a backward operator, from the plain formula `forward(f, c, **inputs)` of its forward.

    Args:
        dy: the backward operator's names for the upstream gradients of the results of `forward`. Absent ones are
            zeros.
        upstream: for each input of `forward`, the upstream gradient of that input's gradient; None if nothing flows.
            It is ignored for an absent input, which has no gradient.
    """
    given_upstream = {
        name: gradient for name, gradient in upstream.items() if gradient is not None and getattr(c, name) is not None
    }

    def backward(**inputs: Tensor | None) -> tuple[Tensor, ...]:
        upstream_of_forward = [inputs.pop(name) for name in dy]

        def forward_of_inputs_with_gradient(*values: Tensor) -> tuple[Tensor, ...]:
            results = forward(f, c, **{**inputs, **dict(zip(given_upstream, values, strict=True))})
            pairs = zip(results if isinstance(results, tuple) else (results,), upstream_of_forward, strict=True)
            return tuple(result for result, given in pairs if given is not None)

        given = tuple(x for x in upstream_of_forward if x is not None)
        return tuple(f.vjp(forward_of_inputs_with_gradient, [inputs[name] for name in given_upstream], given))

    return derivative(f, c, backward, (*dy, *upstream), tuple(given_upstream.values()))


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
