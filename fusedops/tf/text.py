"""Functions that are made of text, as `dataclasses` make methods.

On small tensors a call costs what Python does around it, above all each call that Python makes on the way: after an
operator's kernel, nothing of it is in the processor's caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def function(text: str, name: str, module: dict[str, Any], known: dict[str, Any]) -> Callable[..., Any]:
    """The function of this name that `text` defines, in which `known` are constants and `module` are the globals.

    AutoGraph, which would look for the text in a file, leaves it alone.
    """
    inner = text.strip().replace("\n", "\n    ")
    outer = f"def make({', '.join(known)}):\n    {inner}\n    return {name}"
    made: dict[str, Any] = {}
    exec(compile(outer, f"<fusedops.tf.{name}>", "exec", dont_inherit=True), module, made)
    result = made["make"](**known)
    result.__qualname__ = name
    return unconverted(result)


# The mark of a function that AutoGraph leaves alone. The wrapper that carries it elsewhere, of do_not_convert, costs a
# fifth of a small operator's call.
_MARK = vars(tf.autograph.experimental.do_not_convert(lambda: None))


def unconverted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, which AutoGraph leaves alone."""
    function.__dict__.update({name: value for name, value in _MARK.items() if name != "__wrapped__"})
    return function
