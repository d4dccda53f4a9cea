"""The dtypes in which operators get their inputs under autocast, derived from their declarations.

Products and attention, whose declaration asks for it, get autocast's dtype. All other differentiable operators get
their inputs as they are, if they take these dtypes, and otherwise in the widest one, as torch's own add and cat do.
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
DTypes = tuple[torch.dtype | None, ...]  # of an operator's inputs; None: no tensor

_PROMOTED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def autocast_dtype(device: str) -> torch.dtype | None:
    """What autocast casts to on this kind of device; None where it is off. There is none for tensors without data."""
    return torch.get_autocast_dtype(device) if device != "meta" and torch.is_autocast_enabled(device) else None


def autocast(declaration: Operator) -> Callable[[Inputs], Inputs] | None:
    """The function that casts the inputs of a call while autocast is on; None for an operator of one tensor."""
    if declaration.autocast:
        return _cast
    if len(declaration.inputs) < 2 or not declaration.differentiable:
        return None
    return functools.partial(_promoted, declaration.name)


def takes(name: str, dtypes: DTypes) -> bool:
    """True if an operator that promotes its inputs takes these dtypes as they are."""
    return _known_widest(name, dtypes) is None


def _cast(inputs: Inputs) -> Inputs:
    """The inputs in autocast's dtype, where it is on for their device; float64 stays, as in torch's own products."""
    dtype = _dtype_at(inputs)
    if dtype is None:
        return inputs
    return tuple(
        x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != torch.float64 else x
        for x in inputs
    )


def _promoted(name: str, inputs: Inputs) -> Inputs:
    """The inputs in the widest of their dtypes, if the operator refuses their own and autocast is on for their device.

    Parameters and scalars do not widen the others. They are promoted along with them.
    """
    if _dtype_at(inputs) is None:
        return inputs
    widest = _widest(name, tuple(x.dtype if isinstance(x, torch.Tensor) else None for x in inputs))
    if widest is None:
        return inputs
    dtype = getattr(torch, widest)
    return tuple(
        x.to(torch.promote_types(x.dtype, dtype)) if isinstance(x, torch.Tensor) and x.dtype in _PROMOTED else x
        for x in inputs
    )


def _dtype_at(inputs: Inputs) -> torch.dtype | None:
    return autocast_dtype(next(x for x in inputs if isinstance(x, torch.Tensor)).device.type)


@functools.cache
def _known_widest(name: str, dtypes: DTypes) -> str | None:
    """The name of the dtype to promote inputs of these dtypes to; None if the operator takes them as they are."""
    given = [
        dtype
        for x, dtype in zip(TABLE[name].inputs, dtypes, strict=False)
        if dtype in _PROMOTED and not x.parameter and x.kind != "scalar"
    ]
    if not given or len({*dtypes} & {*_PROMOTED}) < 2 or shapes.takes_dtypes(name, dtypes):
        return None
    return str(functools.reduce(torch.promote_types, given)).removeprefix("torch.")


@internals.before_tracing
def _widest(name: str, dtypes: DTypes) -> str | None:
    return _known_widest(name, dtypes)
