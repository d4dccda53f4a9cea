"""Fused operators for TensorFlow: the functions of `fusedops.functions` over TensorFlow tensors.

They differentiate to any order, forward and backward, and work eagerly, in `tf.function` and in SavedModels. The raw
operators are in `tf.load_op_library(library_path())`, named `Fusedops...`, and need no import of this package.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fusedops import functions, loading

if TYPE_CHECKING:
    from fusedops.functions import *  # noqa: F403

loading.library("tf")  # says what is missing before TensorFlow is imported

import tensorflow as tf  # noqa: E402

from fusedops.tf import formulas as formulas  # noqa: E402  for its effect: it registers the gradients
from fusedops.tf import mapping as mapping  # noqa: E402  for its effect: it tells tf.vectorized_map of the operators
from fusedops.tf import xla as xla  # noqa: E402  for its effect: it tells XLA of the operators
from fusedops.tf.operators import LIBRARY  # noqa: E402
from fusedops.tf.operators import OPERATORS as ops  # noqa: E402, F401


def library_path() -> str:
    """The path of the compiled operators, for `tf.load_op_library`."""
    return str(LIBRARY)


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with the parameter that all of TensorFlow's functions have."""

    @functools.wraps(function)
    def named(*args: Any, name: str | None = None, **kwargs: Any) -> Any:
        if name is None:
            return function(*args, **kwargs)
        with tf.name_scope(name):
            return function(*args, **kwargs)

    signature = inspect.signature(function)
    name = inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None")
    # AutoGraph's mark alone: the wrapper that do_not_convert makes costs a fifth of a small operator's call.
    named.__dict__.update(vars(tf.autograph.experimental.do_not_convert(named)))
    named.__signature__ = signature.replace(parameters=[*signature.parameters.values(), name])  # type: ignore[attr-defined]
    del named.__wrapped__  # it has no `name`
    return named


def __getattr__(name: str) -> Any:
    if name == "keras":  # on first use: it needs Keras 3 over TensorFlow, which the operators do not
        return importlib.import_module("fusedops.tf.keras")
    raise AttributeError(f"module 'fusedops.tf' has no attribute {name!r}")


_public = {name: _named(function) for name, function in functions.public(globals()).items()}
globals().update(_public, Tensor=Any)  # their annotations speak of Tensor
__all__ = ["library_path", *_public]
