"""Autograd of every operator: one torch.autograd.Function over its derivative, in reverse and forward mode.

The kernel that the dispatcher calls where autograd is on applies it: for `torch.ops.fusedops.<name>`, as does
operators.py in eager code, past the dispatcher; or where that has a kernel in C++, for `_<name>`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusedops.torch import internals
from fusedops.torch.arguments import Arguments
from fusedops.torch.derivatives import Derivative, alive
from fusedops.torch.internals import forward_ad
from fusedops.torch.library import Signature, overload

_LIBRARY = torch.library.Library("fusedops", "IMPL")


def autograd_functions(derivative: Derivative, bare: Callable[..., Any]) -> tuple[Any, Any]:
    """What applies the operator with a node of autograd: over the bare kernel, and over the registered operator."""
    registered = overload(derivative.signature.declaration.name)

    class Eager(internals.SingleLevelFunction):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            *inputs, rest = arguments
            outputs = bare(*inputs, *rest)
            derivative.save(ctx, inputs, rest, outputs, forward_mode=forward_ad._current_level >= 0)
            return outputs

        @staticmethod
        def backward(ctx: Any, *dy: Any) -> Arguments:  # torch's compiled autograd takes no method of an object
            return (*derivative.evaluate(ctx, ctx.saved_tensors, ctx.needs_input_grad[:-1], dy), None)

        jvp = staticmethod(derivative.jvp)
        _compiled_autograd_key = staticmethod(internals.compiled_autograd_key)

    class Registered(Eager):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            *inputs, (keys, rest) = arguments
            # torch turns both modes off here, and the transforms of torch.func below this one have need of them.
            with torch.enable_grad(), internals.forward_mode(True):
                outputs = _below_autograd(registered, keys, (*inputs, *rest))
            derivative.save(ctx, inputs, rest, outputs, forward_mode=True)
            return outputs

        @staticmethod
        def backward(ctx: Any, *dy: Any) -> Arguments:
            saved, dy = tuple(map(alive, ctx.saved_tensors)), tuple(map(alive, dy))
            return (*derivative.evaluate(ctx, saved, ctx.needs_input_grad[:-1], dy), None)

    # grad_fn and torch.profiler show the name of the class.
    title = derivative.signature.declaration.type
    both: list[Any] = [type(title, (base,), {}) for base in (Eager, Registered)]
    # No torch.autograd.Function, whose apply looks for transforms and for a setup_context: it does not know that the
    # kernel below is called by one transform at a time, and since torch 2.15 refuses it there.
    return both[0].apply, both[1].apply


def _below_autograd(registered: Any, keys: Any, arguments: Sequence[Any]) -> Any:
    with internals.below_autograd():
        return registered.redispatch(keys & internals.after_autograd_keys, *arguments)


def _is_watched(inputs: Sequence[Any]) -> bool:
    """Whether autograd follows one of them, in reverse or forward mode.

    Tangents are looked for, not forward_ad's level: code that Dynamo has traced enters levels behind its back. That
    takes a microsecond each; in the forward and backward of compiled code, forward mode is off.
    """
    if torch.is_grad_enabled():
        for x in inputs:
            if x is not None and x.requires_grad:
                return True
    if internals.is_forward_mode_enabled():
        for x in inputs:
            if x is not None and x.is_floating_point() and internals.unpack_dual(x, 0)[1] is not None:
                return True
    return False


def autograd_kernel(signature: Signature, defaults: Arguments, apply: Callable[..., Any]) -> Callable[..., Any]:
    """What the dispatcher calls for `torch.ops.fusedops.<name>` where autograd is on.

    torch.func calls it once for each of its transforms that differentiate, with tensors of that level alone, just as it
    calls the kernels of torch's own operators: nothing here knows of levels.
    """
    registered, count = overload(signature.declaration.name), signature.inputs

    def kernel(keys: Any, *arguments: Any) -> Any:
        if not _is_watched(arguments[:count]):
            return _below_autograd(registered, keys, arguments)
        inputs, rest = signature.padded(arguments), arguments[count:]
        rest = (*rest, *defaults[len(rest) :])  # torch leaves trailing defaults out
        allowed = internals.is_single_level_function_allowed()
        internals.allow_single_level_function(True)
        try:
            return apply(*inputs, (keys, rest))
        finally:
            internals.allow_single_level_function(allowed)

    return kernel


def plain_kernel(signature: Signature) -> Callable[..., Any]:
    """The same for an operator that is not differentiable, and may update inputs: torch_autograd/kernel.cpp."""
    declaration = signature.declaration
    registered = overload(declaration.name)

    def kernel(keys: Any, *arguments: Any) -> Any:
        updated = []
        for declared, given in zip(declaration.inputs, arguments, strict=False):
            for x in given if isinstance(given, (list, tuple)) else [given]:
                if x is not None and x.requires_grad and torch.is_grad_enabled():
                    sentence = f"fusedops.{declaration.name}: {declared.name} has no gradient"
                    raise RuntimeError(f"{sentence}; call it under torch.no_grad()")
                if declared.updated and not x.is_inference():
                    updated.append(x)
        results = _below_autograd(registered, keys, arguments)
        torch.autograd.graph.increment_version(updated)
        return results

    return kernel


def register(name: str, kernel: Callable[..., Any]) -> None:
    """The kernel is what the dispatcher calls for `torch.ops.fusedops.<name>` where autograd is on."""
    _LIBRARY.impl(name, kernel, "Autograd", with_keyset=True)
