"""Input dtypes under autocast, derived from the operators' declarations.

Products and attention, whose declarations set `autocast`, get autocast's dtype. All other differentiable operators get
their inputs unchanged if they accept these dtypes. Otherwise inputs are promoted to the widest dtype, as in torch.add.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from fusedops.declarations import Operator
from fusedops.torch import internals, shapes
from fusedops.torch.library import TABLE

Inputs = tuple[Any, ...]
DTypes = tuple[torch.dtype | None, ...]  # one per input; None: no tensor

_PROMOTED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_CAST = (torch.float32, torch.float16, torch.bfloat16)


def autocast_dtype(device: str) -> torch.dtype | None:
    """The dtype to which autocast casts on this device type; None where it is off, and on the meta device."""
    return torch.get_autocast_dtype(device) if device != "meta" and torch.is_autocast_enabled(device) else None


def autocast(declaration: Operator) -> Callable[[Inputs], Inputs] | None:
    """The function that casts a call's inputs while autocast is on; None if there is nothing to cast."""
    if declaration.autocast:
        with_gradients = {gradient.input for step in declaration.derivative for gradient in step.gradients}
        return functools.partial(_cast, declaration.name, tuple(x.name in with_gradients for x in declaration.inputs))
    if len(declaration.inputs) < 2 or not declaration.differentiable:
        return None
    return functools.partial(_promoted, declaration.name)


def _cast(name: str, has_gradient: tuple[bool, ...], inputs: Inputs) -> Inputs:
    """The inputs in autocast's dtype if it is on for their device.

    float64 stays, as in torch's own products. Inputs without a gradient stay if the operator takes them so, such as
    weights of classes; the target of a divergence is cast.
    """
    dtype = _dtype_at(inputs)
    if dtype is None:
        return inputs
    casts_all = _casts_all(name, has_gradient, _dtypes(inputs), dtype)
    return tuple(
        x.to(dtype) if (cast or casts_all) and isinstance(x, torch.Tensor) and x.dtype in _CAST else x
        for x, cast in zip(inputs, has_gradient, strict=True)
    )


def _promoted(name: str, inputs: Inputs) -> Inputs:
    """The inputs in the widest of their dtypes, if autocast is on and the operator refuses their own dtypes.

    Parameters and scalars do not determine the widest dtype, but are promoted to it.
    """
    if _dtype_at(inputs) is None:
        return inputs
    widest = _widest(name, _dtypes(inputs))
    if widest is None:
        return inputs
    dtype = getattr(torch, widest)
    return tuple(
        x.to(torch.promote_types(x.dtype, dtype)) if isinstance(x, torch.Tensor) and x.dtype in _PROMOTED else x
        for x in inputs
    )


def _dtype_at(inputs: Inputs) -> torch.dtype | None:
    return autocast_dtype(next(x for x in inputs if isinstance(x, torch.Tensor)).device.type)


@internals.before_tracing
def _widest(name: str, dtypes: DTypes) -> str | None:
    return _known_widest(name, dtypes)


def _dtypes(inputs: Inputs) -> DTypes:
    return tuple(x.dtype if isinstance(x, torch.Tensor) else None for x in inputs)


@functools.cache
def _known_casts_all(name: str, has_gradient: tuple[bool, ...], dtypes: DTypes, dtype: torch.dtype) -> bool:
    """True if the operator takes inputs without a gradient in autocast's dtype only."""
    every = tuple(dtype if x in _CAST else x for x in dtypes)
    some = tuple(new if cast else old for old, new, cast in zip(dtypes, every, has_gradient, strict=True))
    return every != some and not shapes.takes_dtypes(name, some) and shapes.takes_dtypes(name, every)


@internals.before_tracing
def _casts_all(name: str, has_gradient: tuple[bool, ...], dtypes: DTypes, dtype: torch.dtype) -> bool:
    return _known_casts_all(name, has_gradient, dtypes, dtype)


@functools.cache
def _known_widest(name: str, dtypes: DTypes) -> str | None:
    """The name of the dtype to promote inputs of these dtypes to; None if the operator accepts them unchanged."""
    given = [
        dtype
        for x, dtype in zip(TABLE[name].inputs, dtypes, strict=False)
        if dtype in _PROMOTED and not x.parameter and x.kind != "scalar"
    ]
    if not given or len({*dtypes} & {*_PROMOTED}) < 2 or shapes.takes_dtypes(name, dtypes):
        return None
    return str(functools.reduce(torch.promote_types, given)).removeprefix("torch.")
