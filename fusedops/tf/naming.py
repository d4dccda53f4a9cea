"""The parameter `name` of all of TensorFlow's functions, and calls on Keras tensors without values."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fusedops.tf import text


def has_keras() -> bool:
    """True if this process has imported Keras 3, which the operators do not need."""
    return hasattr(sys.modules.get("keras"), "KerasTensor")


def are_symbolic(*arguments: Any) -> bool:
    """True if a Keras tensor without a value is among the arguments of a call."""
    if not has_keras():
        return False
    from fusedops.tf import symbolic

    return symbolic.are_given(arguments)


def with_name(function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    """The function with this signature, which adds `name`: the name of a call's operations in a graph.

    It also takes Keras tensors without values. A function with a parameter `name` of its own gets no other.
    """
    plain = inspect.signature(function)
    takes_name = "name" not in plain.parameters

    @functools.wraps(function)
    def public(*inputs: Any, name: Any = None, **options: Any) -> Any:
        if name is not None and not takes_name:
            options["name"], name = name, None
        if name is None:
            try:
                return function(*inputs, **options)
            except TypeError:  # checked only now, so that other calls do not pay for the check
                if not are_symbolic(*inputs, *options.values()):
                    raise
        elif not are_symbolic(*inputs, *options.values()):
            with tf.name_scope(name):
                return function(*inputs, **options)
        from fusedops.tf import symbolic

        try:
            call = plain.bind(*inputs, **options)
        except TypeError:
            return function(*inputs, **options)  # whose own error names the function
        call.apply_defaults()
        return symbolic.call(public, name, call.args, call.kwargs)

    public.__signature__ = signature  # type: ignore[attr-defined]
    annotated = {p.name: p.annotation for p in signature.parameters.values() if p.annotation is not p.empty}
    public.__annotations__ = {**function.__annotations__, **annotated}
    return text.unconverted(public)
