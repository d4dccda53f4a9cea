"""Functions generated from text, as `dataclasses` generates methods.

On small tensors the cost of a call is Python's work around the kernel, above all nested calls: after the kernel, none
of it is in the processor's caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def function(text: str, name: str, module: dict[str, Any], known: dict[str, Any]) -> Callable[..., Any]:
    """The function of this name that `text` defines, with the constants `known` and the globals `module`.

    AutoGraph leaves it alone; it would look for the text in a file.
    """
    inner = text.strip().replace("\n", "\n    ")
    outer = f"def make({', '.join(known)}):\n    {inner}\n    return {name}"
    made: dict[str, Any] = {}
    exec(compile(outer, f"<fusedops.tf.{name}>", "exec", dont_inherit=True), module, made)
    result = made["make"](**known)
    result.__qualname__ = name
    return unconverted(result)


# AutoGraph leaves functions with this mark alone. do_not_convert would put it on a wrapper, which costs a fifth of a
# small operator's call.
_MARK = vars(tf.autograph.experimental.do_not_convert(lambda: None))


def unconverted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks the function itself, so that AutoGraph leaves it alone."""
    function.__dict__.update({name: value for name, value in _MARK.items() if name != "__wrapped__"})
    return function
