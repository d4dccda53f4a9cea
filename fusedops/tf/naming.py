"""The parameter `name` that all of TensorFlow's functions have, and their calls on Keras's tensors without values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def has_keras() -> bool:
    """Whether this process has Keras 3, which the operators do without."""
    return hasattr(sys.modules.get("keras"), "KerasTensor")


def are_symbolic(*arguments: Any) -> bool:
    """Whether a tensor of Keras's that has no value yet is among the arguments of a call."""
    if not has_keras():
        return False
    from fusedops.tf import symbolic

    return symbolic.are_given(arguments)


def call_symbolic(function: Callable[..., Any], name: str | None, /, *arguments: Any, **options: Any) -> Any:
    from fusedops.tf import symbolic

    return symbolic.call(function, name, arguments, options)


def named(name: str, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
    """The function's call, with a name for the operations that it adds to a graph."""
    if are_symbolic(*arguments, *options.values()):
        return call_symbolic(function, name, *arguments, **options)
    with tf.name_scope(name):
        return function(*arguments, **options)
