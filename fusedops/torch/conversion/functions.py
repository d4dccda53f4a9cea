"""Counterparts of modules whose `forward` calls functions of torch.nn.functional.

The code of `forward` gets new globals, in which the functions, and the modules that contain them (`F`, `torch.nn`,
`torch`), are replaced. So a call has no overhead, torch.compile sees plain functions, and torch does not change.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, ClassVar

import torch
from torch.nn import functional

from fusedops.conversion import UnknownClass
from fusedops.torch.conversion.functional import KERNELS
from fusedops.torch.conversion.hf.code import steps, with_global
from fusedops.torch.conversion.hf.layer import ClassSpecificLayer


def _like(module: ModuleType, **members: Any) -> ModuleType:
    """A copy of a module with some members replaced."""
    made = ModuleType(module.__name__, module.__doc__)
    made.__getattr__ = functools.partial(getattr, module)  # type: ignore[method-assign]
    vars(made).update(members)
    return made


_FUNCTIONS = (FunctionType, BuiltinFunctionType)  # scaled_dot_product_attention is one of C++
_FUNCTIONAL = _like(functional, **{function.__name__: kernel for function, kernel in KERNELS.items()})
_NN = _like(torch.nn, functional=_FUNCTIONAL)
_OURS: dict[Any, Any] = {functional: _FUNCTIONAL, torch.nn: _NN, torch: _like(torch, nn=_NN), **KERNELS}


class OwnForward(ClassSpecificLayer):
    """A module of any class for which `called` finds functions: its `forward` calls fusedops's instead."""

    functions: ClassVar[tuple[str, ...]]  # their names

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        forward = _forward(kind)
        for name in {name for name, _ in _called(forward)}:
            forward = with_global(forward, name, _OURS[forward.__globals__[name]])
        return {"forward": forward, "functions": called(kind)}


def called(kind: type) -> tuple[str, ...]:
    """The names of functions in a class's `forward` that fusedops has kernels for; none for torch's own classes."""
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
    """(name of the global variable, function) for each function that is a global or a member of a global module."""
    name, value = "", None
    for step in steps(forward.__code__):
        if step.opname == "LOAD_GLOBAL":
            name, value = step.argval, forward.__globals__.get(step.argval)
            if not isinstance(value, (*_FUNCTIONS, ModuleType)) or value not in _OURS:  # another F
                value = None
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, ModuleType):
            value = getattr(value, step.argval, None)
        elif step.opname != "EXTENDED_ARG":
            value = None
        if isinstance(value, _FUNCTIONS) and value in KERNELS:
            yield name, value
