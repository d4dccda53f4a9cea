"""Every operator of the core as a function of torch's tensors, which chooses how to call it.

An operator is called as `operator(*inputs, **attributes)`, its inputs in the order of the declaration: tensors, None
for an absent optional, a number where a scalar is wanted.

The registered operator `torch.ops.fusedops.<name>` is right everywhere: torch's compiler sees it whole, and its
autograd kernel knows reverse and forward mode in any nesting of torch.func. Where that kernel is in C++
(`torch_autograd/`), nothing else is called. It leaves what it has no derivative for, and forward mode, to the kernel in
Python (`autograd.py`), which is then that of the second name, `_<name>`.

Without it, the kernel in Python is that of the registered operator. The way through the dispatcher to it costs several
microseconds, so that in eager code the function takes a shorter one, where `_<name>` is the kernel without autograd:

    compiling, exporting or inside torch.func      the registered operator
    seen by a TorchDispatchMode or by a tracer     the registered operator: it has one name for them
    a gradient is wanted                           the same autograd.Function, over the bare kernel
    otherwise                                      the bare kernel
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch

from fusedops.declarations import Operator
from fusedops.derivatives import derivative_of
from fusedops.functions.operators import Operators
from fusedops.torch import autograd_library, flops, internals, mapping, shapes  # noqa: F401  some for their effect
from fusedops.torch.arguments import Arguments, arrangement
from fusedops.torch.autocast import autocast
from fusedops.torch.autograd import autograd_functions, autograd_kernel, plain_kernel, register
from fusedops.torch.calls import spelled_out
from fusedops.torch.derivatives import OF_FORMULAS, Derivative
from fusedops.torch.errors import check_dense, explain
from fusedops.torch.internals import forward_ad
from fusedops.torch.library import SIGNATURES, TABLE, Signature, for_each, overload

_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_are_transforms_active = internals.are_transforms_active
_is_recorded = internals.is_recorded
_is_any_autocast_enabled = internals.is_any_autocast_enabled

_IN_CPP = autograd_library.fault is None


def _functions(signature: Signature) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The function that users and layers call, and the one that formulas call."""
    declaration, scalars = signature.declaration, signature.scalars
    name, cast_inputs = declaration.name, autocast(declaration)
    public = overload(name)
    operator, bare = internals.in_cpp(public), internals.in_cpp(overload(f"_{name}"))
    shortest = operator if _IN_CPP else bare
    derivative = Derivative(signature, derivative_of(TABLE, declaration))
    eager, registered = autograd_functions(derivative, bare)
    register(f"_{name}" if _IN_CPP else name, autograd_kernel(signature, derivative.defaults, registered))
    arranged = arrangement(signature)

    def call(*inputs: Any, **attributes: Any) -> Any:
        tensors, rest = arranged(inputs, attributes)
        if cast_inputs is not None and _is_any_autocast_enabled():
            tensors = cast_inputs(tensors)
        if _is_compiling():
            check_dense(declaration, tensors)
            return public(*tensors, *rest)
        try:
            if _IN_CPP:
                return operator(*tensors, *rest)
            if _are_transforms_active() or _is_recorded():
                return public(*tensors, *rest)
            if forward_ad._current_level >= 0:
                return eager(*tensors, rest)
            if _is_grad_enabled():
                for x in tensors:
                    if x is not None and x.requires_grad:
                        return eager(*tensors, rest)
            return bare(*tensors, *rest)
        except (TypeError, RuntimeError) as error:
            explain(declaration, tensors, error)
            raise

    def call_of_formula(*inputs: Any, **attributes: Any) -> Any:
        """Mostly a backward that nobody differentiates: what it passes was checked when its forward was called."""
        plain = not _is_compiling() and not (scalars and float in map(type, inputs))
        if not _IN_CPP:
            plain = plain and not (_is_grad_enabled() or _are_transforms_active() or _is_recorded())
            plain = plain and forward_ad._current_level < 0
        if plain:
            try:
                return shortest(*inputs, **attributes)
            except (TypeError, NotImplementedError):  # `call` says it better
                pass
        return call(*inputs, **attributes)

    def explained(inputs: Arguments, error: Exception) -> None:
        explain(declaration, inputs, error)

    call.__name__ = call.__qualname__ = name
    of_user = spelled_out(declaration, operator, call, explained) if _IN_CPP else call
    return of_user, call if declaration.autocast else call_of_formula


def _plain_function(signature: Signature) -> Callable[..., Any]:
    """That of an operator that is not differentiable, and may update inputs."""
    declaration = signature.declaration
    public = overload(declaration.name)
    operator = internals.in_cpp(public)
    if not _IN_CPP:
        register(declaration.name, plain_kernel(signature))
    arranged = arrangement(signature)

    def call(*inputs: Any, **attributes: Any) -> Any:
        tensors, rest = arranged(inputs, attributes)
        if _is_compiling():
            return public(*tensors, *rest)
        try:
            return operator(*tensors, *rest)
        except (TypeError, RuntimeError) as error:
            explain(declaration, tensors, error)
            raise

    call.__name__ = call.__qualname__ = declaration.name
    return spelled_out(declaration, operator, call, functools.partial(explain, declaration))


OPERATORS = cast(Operators, SimpleNamespace())


def _offer(row: Operator) -> None:
    if not row.differentiable:
        setattr(OPERATORS, row.name, _plain_function(SIGNATURES[row.name]))
        return
    of_user, of_formula = _functions(SIGNATURES[row.name])
    setattr(OPERATORS, row.name, of_user)
    setattr(OF_FORMULAS, row.name, of_formula)


for_each(_offer)
