"""PyTorch: the transforms of torch.func by name, each as a function of the transformed tensors."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import torch
from torch.autograd import forward_ad

from tests.helpers.checks import tuples

Function = Callable[..., Any]


def total(function: Function) -> Function:
    """The outputs as one number whose second derivatives are not zero."""
    return lambda *tensors: sum((y**3).sum() for y in tuples(function(*tensors)))


def transforms(function: Function, tensors: tuple[Any, ...]) -> dict[str, Function]:
    """The function under each transform: again a function of the tensors."""
    func, places = torch.func, tuple(range(len(tensors)))
    generator = torch.Generator().manual_seed(0)
    tangents = tuple(torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device) for x in tensors)
    upstream = tuple(torch.ones_like(y) for y in tuples(function(*tensors)))
    gradient = func.grad(total(function), places)

    def mapped(one: Function) -> Function:
        return lambda *inputs: torch.vmap(one)(*(torch.stack([x, 2 * x]) for x in inputs))

    def jvp(*inputs: Any) -> Any:
        return func.jvp(function, inputs, tangents)

    def vjp(*inputs: Any) -> Any:
        outputs, pull_back = func.vjp(lambda *given: tuples(function(*given)), *inputs)
        return (*outputs, *pull_back(upstream))

    def dual_numbers(*inputs: Any) -> Any:
        with forward_ad.dual_level():
            duals = map(forward_ad.make_dual, inputs, tangents)
            return tuple(forward_ad.unpack_dual(y).tangent for y in tuples(function(*duals)))

    return {
        "jvp": jvp,
        "vjp": vjp,
        "grad": gradient,
        "jacfwd": func.jacfwd(function, places),
        "jacrev": func.jacrev(function, places),
        "hessian": func.hessian(total(function), places),
        "jvp of grad": lambda *inputs: func.jvp(gradient, inputs, tangents),
        "grad of jvp": func.grad(total(lambda *inputs: jvp(*inputs)[1]), places),
        "vmap": mapped(function),
        "vmap of grad": mapped(gradient),
        "vmap of jvp": mapped(lambda *inputs: jvp(*inputs)),
        "dual numbers": dual_numbers,
    }


def all_transforms(function: Function, tensors: tuple[Any, ...], names: Container[str] | None = None) -> Function:
    """The results of all or the named transforms as one function, so that slow compilations run once."""
    chosen = {
        name: transform for name, transform in transforms(function, tensors).items() if names is None or name in names
    }
    return lambda *inputs: {name: transform(*inputs) for name, transform in chosen.items()}


def assert_close(got: Any, expected: Any) -> None:
    """A transform may sum in another order: a few hundred roundings of float64."""
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
