"""Operators of one's own for TensorFlow."""

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf

from fusedops import libraries
from fusedops.declarations import Operator
from fusedops.libraries import Gradients, Loader, Sources
from fusedops.tf import library, text
from fusedops.tf.operators import OPERATORS


def _public(row: Operator, operator: Callable[..., Any]) -> Callable[..., Any]:
    """With the parameter `name` that all of TensorFlow's functions have, unless the operator has one itself."""
    function = libraries.public(row, operator)
    signature = inspect.signature(function)
    if "name" in signature.parameters:
        return text.unconverted(function)

    @functools.wraps(function)
    def named(*inputs: Any, name: str | None = None, **attributes: Any) -> Any:
        if name is None:
            return function(*inputs, **attributes)
        with tf.name_scope(name):
            return function(*inputs, **attributes)

    parameter = inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default=None)
    named.__signature__ = signature.replace(parameters=[*signature.parameters.values(), parameter])  # type: ignore[attr-defined]
    return text.unconverted(named)


_LOADER = Loader("fusedops.tf", ctypes.CDLL(str(library.LIBRARY)), library.add, OPERATORS, _public)


def load(name: str, sources: Sources, *, gradients: Gradients | None = None) -> ModuleType:
    return _LOADER.load(name, sources, gradients)


load.__doc__ = Loader.load.__doc__
text.unconverted(load)
