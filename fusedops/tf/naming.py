"""The parameter that all of TensorFlow's functions have."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import tensorflow as tf

from fusedops.functions.signatures import signature

_TEXT = """
def make(_function, _scope, _are_symbolic, _symbolic):
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
    return {name}
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

    It is made of text, as `dataclasses` make methods: a plain function, in which whatever looks at signatures and
    annotations finds its own, and which costs less at a call than one that hands on *args and **kwargs.
    """
    head = signature(function, "tf")
    parameters = [p for p in head.parameters.values() if p.name != "name"]
    arguments = ", ".join(f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name for p in parameters)
    made: dict[str, Any] = {}
    names = ", ".join(p.name for p in parameters)
    text = _TEXT.format(name=function.__name__, head=head, arguments=arguments, parameters=names)
    exec(compile(text, f"<fusedops.tf.{function.__name__}>", "exec", dont_inherit=True), function.__globals__, made)
    result = made["make"](function, tf.name_scope, _are_symbolic, _symbolic(function.__name__))
    result.__doc__, result.__module__, result.__qualname__ = function.__doc__, function.__module__, function.__name__
    # AutoGraph's mark alone: the wrapper that do_not_convert makes costs a fifth of a small operator's call.
    result.__dict__.update(vars(tf.autograph.experimental.do_not_convert(result)))
    del result.__wrapped__
    return result
