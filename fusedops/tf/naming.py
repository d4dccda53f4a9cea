"""The parameter that all of TensorFlow's functions have."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import tensorflow as tf

from fusedops.functions.signatures import signature

_TEXT = """
def make(_function, _scope):
    def {name}{head}:
        if name is None:
            return _function({arguments})
        with _scope(name):
            return _function({arguments})
    return {name}
"""


def named(function: FunctionType) -> Callable[..., Any]:
    """`function` with a `name` for the operations that it adds to a graph.

    It is made of text, as `dataclasses` make methods: a plain function, in which whatever looks at signatures and
    annotations finds its own, and which costs less at a call than one that hands on *args and **kwargs.
    """
    head = signature(function, "tf")
    parameters = [p for p in head.parameters.values() if p.name != "name"]
    arguments = ", ".join(f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name for p in parameters)
    made: dict[str, Any] = {}
    text = _TEXT.format(name=function.__name__, head=head, arguments=arguments)
    exec(compile(text, f"<fusedops.tf.{function.__name__}>", "exec", dont_inherit=True), function.__globals__, made)
    result = made["make"](function, tf.name_scope)
    result.__doc__, result.__module__, result.__qualname__ = function.__doc__, function.__module__, function.__name__
    # AutoGraph's mark alone: the wrapper that do_not_convert makes costs a fifth of a small operator's call.
    result.__dict__.update(vars(tf.autograph.experimental.do_not_convert(result)))
    del result.__wrapped__
    return result
