"""Autograd of every operator, in reverse and forward mode and of any order: one kernel for the Autograd key.

For CPU and CUDA, torch_autograd/ registers a C++ kernel with priority over this one. It calls this kernel for forward
mode and for derivatives that are Python formulas. Without that library, every call takes a few microseconds more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusedops.declarations import Operator
from fusedops.derivatives import derivative_of
from fusedops.torch import internals
from fusedops.torch.arguments import Arguments
from fusedops.torch.derivatives import Derivative, unwrapped
from fusedops.torch.library import SIGNATURES, TABLE, Signature, for_each, overload

_LIBRARY = torch.library.Library("fusedops", "IMPL")


def _node(derivative: Derivative) -> Any:
    """The torch.autograd.Function that calls the operator below autograd and evaluates its derivative."""
    registered = overload(derivative.signature.declaration.name)

    # Not a torch.autograd.Function: its apply handles all transforms at once, and torch 2.15 refuses it in a kernel
    # that is called for one transform at a time.
    class Node(internals.SingleLevelFunction):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            *inputs, (keys, rest) = arguments
            # torch turns both modes off here, but the outer transforms of torch.func need them.
            with torch.enable_grad(), internals.forward_mode(True):
                outputs = _below_autograd(registered, keys, (*inputs, *rest))
            derivative.save(ctx, inputs, rest, outputs)
            return outputs

        @staticmethod
        def backward(ctx: Any, *dy: Any) -> Arguments:  # compiled autograd needs a static method
            saved, dy = tuple(map(unwrapped, ctx.saved_tensors)), tuple(map(unwrapped, dy))
            return (*derivative.evaluate(ctx, saved, ctx.needs_input_grad[:-1], dy), None)

        jvp = staticmethod(derivative.jvp)
        _compiled_autograd_key = staticmethod(internals.compiled_autograd_key)

    # grad_fn and torch.profiler show the class name.
    return type(derivative.signature.declaration.type, (Node,), {})


def _below_autograd(registered: Any, keys: Any, arguments: Sequence[Any]) -> Any:
    with internals.below_autograd():
        return registered.redispatch(keys & internals.after_autograd_keys, *arguments)


def _is_watched(inputs: Sequence[Any]) -> bool:
    """True if autograd tracks an input, in reverse or forward mode.

    The test for forward mode unpacks each input, a microsecond each. forward_ad's current level would not do: code that
    Dynamo has traced enters levels without setting it. In compiled code forward mode is off.
    """
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        return True
    if not internals.is_forward_mode_enabled():
        return False
    return any(x is not None and x.is_floating_point() and internals.unpack_dual(x, 0)[1] is not None for x in inputs)


def _differentiable(signature: Signature) -> Callable[..., Any]:
    """The kernel of a differentiable operator.

    torch.func calls it once per differentiating transform, with tensors of that level only, as it calls the kernels of
    torch's own operators.
    """
    registered, count = overload(signature.declaration.name), signature.inputs
    derivative = Derivative(signature, derivative_of(TABLE, signature.declaration))
    defaults, apply = derivative.defaults, _node(derivative).apply

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


def _not_differentiable(signature: Signature) -> Callable[..., Any]:
    """The kernel of an operator without a derivative, which may mutate inputs; as in torch_autograd/kernel.cpp."""
    declaration = signature.declaration
    registered = overload(declaration.name)

    def kernel(keys: Any, *arguments: Any) -> Any:
        mutated = []
        for declared, given in zip(declaration.inputs, arguments, strict=False):
            for x in given if isinstance(given, (list, tuple)) else [given]:
                if x is not None and x.requires_grad and torch.is_grad_enabled():
                    sentence = f"fusedops.{declaration.function}: {declared.name} has no gradient"
                    raise RuntimeError(f"{sentence}; call it under torch.no_grad()")
                if declared.updated and not x.is_inference():
                    mutated.append(x)
        results = _below_autograd(registered, keys, arguments)
        torch.autograd.graph.increment_version(mutated)
        return results

    return kernel


def kernel(signature: Signature) -> Callable[..., Any]:
    return (_differentiable if signature.declaration.differentiable else _not_differentiable)(signature)


def _register(operator: Operator) -> None:
    _LIBRARY.impl(operator.name, kernel(SIGNATURES[operator.name]), "Autograd", with_keyset=True)


for_each(_register)
