"""The parameter that all of TensorFlow's functions have."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import tensorflow as tf

from fusedops.functions.signatures import signature
from fusedops.tf import text

_TEXT = """
def {name}{head}:
    try:
        if name is None:
            return _function({arguments})
        with _scope(name):
            return _function({arguments})
    except TypeError:  # asked only now, so that other calls do not wait for the answer
        if not _are_symbolic({parameters}):
            raise
    return _symbolic(name, {arguments})
"""


def has_keras() -> bool:
    """Whether this process has Keras 3, which the operators do without."""
    return hasattr(sys.modules.get("keras"), "KerasTensor")


def _are_symbolic(*arguments: Any) -> bool:
    """Whether a tensor of Keras's that has no value yet is among the arguments of a call."""
    if not has_keras():
        return False
    from fusedops.tf import symbolic

    return symbolic.are_given(arguments)


def _symbolic(function: str) -> Callable[..., Any]:
    def call(name: str | None, *args: Any, **kwargs: Any) -> Any:
        from fusedops.tf import symbolic

        return symbolic.call(function, name, args, kwargs)

    return call


def named(function: FunctionType) -> Callable[..., Any]:
    """`function` with a `name` for the operations that it adds to a graph.

    A plain function, in which whatever looks at signatures and annotations finds its own, and which costs less at a
    call than one that hands on *args and **kwargs.
    """
    head = signature(function, "tf")
    parameters = [p for p in head.parameters.values() if p.name != "name"]
    arguments = ", ".join(f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name for p in parameters)
    names = ", ".join(p.name for p in parameters)
    name = function.__name__
    result = text.function(
        _TEXT.format(name=name, head=head, arguments=arguments, parameters=names),
        name,
        function.__globals__,
        {
            "_function": function,
            "_scope": tf.name_scope,
            "_are_symbolic": _are_symbolic,
            "_symbolic": _symbolic(name),
        },
    )
    result.__doc__, result.__module__ = function.__doc__, function.__module__
    return result
