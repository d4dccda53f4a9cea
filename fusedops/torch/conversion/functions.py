"""Modules whose own `forward` calls functions of torch.nn.functional: the same code, with fusedops's functions in it.

The code gets globals of its own, in which the functions, and the modules that they are looked up in (`F`, `torch.nn`,
`torch`), are others. So nothing is done at a call, torch.compile sees plain functions, and torch's own modules stay as
they are.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, ClassVar

import torch
from torch.nn import functional

from fusedops.conversion import UnknownClass
from fusedops.torch.conversion.functional import KERNELS
from fusedops.torch.conversion.hf.code import steps, with_global
from fusedops.torch.conversion.hf.layer import OfOneClass


def _like(module: ModuleType, **members: Any) -> ModuleType:
    """A module that has these members, and all others of that one."""
    made = ModuleType(module.__name__, module.__doc__)
    made.__getattr__ = functools.partial(getattr, module)  # type: ignore[method-assign]
    vars(made).update(members)
    return made


_FUNCTIONAL = _like(functional, **{function.__name__: kernel for function, kernel in KERNELS.items()})
_NN = _like(torch.nn, functional=_FUNCTIONAL)
_OURS: dict[Any, Any] = {functional: _FUNCTIONAL, torch.nn: _NN, torch: _like(torch, nn=_NN), **KERNELS}


class OwnForward(OfOneClass):
    """A module of any class that `called` has found functions in, with fusedops's in the code of its `forward`."""

    functions: ClassVar[tuple[str, ...]]  # their names

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        forward = _forward(kind)
        for name in {name for name, _ in _called(forward)}:
            forward = with_global(forward, name, _OURS[forward.__globals__[name]])
        return {"forward": forward, "functions": called(kind)}


def called(kind: type) -> tuple[str, ...]:
    """The functions in the `forward` of a class that fusedops has kernels for; none in those of torch's own classes."""
    forward: Any = inspect.unwrap(kind.forward)  # type: ignore[attr-defined]
    if str(kind.__module__).partition(".")[0] == "torch" or not isinstance(forward, FunctionType):
        return ()
    return tuple(sorted({function.__name__ for _, function in _called(forward)}))


def _forward(kind: type) -> FunctionType:
    forward = kind.forward  # type: ignore[attr-defined]
    if not isinstance(forward, FunctionType) or hasattr(forward, "__wrapped__"):
        raise UnknownClass("its forward is decorated, so that functions in it are not replaced")
    return forward


def _called(forward: FunctionType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions that are global variables, or are found in modules that are; with the variable's name."""
    name, value = "", None
    for step in steps(forward.__code__):
        if step.opname == "LOAD_GLOBAL":
            name, value = step.argval, forward.__globals__.get(step.argval)
            if not isinstance(value, (FunctionType, ModuleType)) or value not in _OURS:  # such as another module's F
                value = None
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, ModuleType):
            value = getattr(value, step.argval, None)
        elif step.opname != "EXTENDED_ARG":
            value = None
        if isinstance(value, FunctionType) and value in KERNELS:
            yield name, value
