"""Operators of one's own for TensorFlow."""

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fusedops import libraries
from fusedops.declarations import Operator
from fusedops.libraries import Gradients, Loader, Sources
from fusedops.tf import library, naming, text
from fusedops.tf.operators import OPERATORS


def _public(row: Operator, operator: Callable[..., Any]) -> Callable[..., Any]:
    """Takes Keras's symbolic tensors, and the parameter `name` of TensorFlow's functions unless the operator has an
    attribute of that name."""
    function = libraries.public(row, operator)
    signature = inspect.signature(function)
    takes_name = "name" not in signature.parameters

    @functools.wraps(function)
    def public(*inputs: Any, **attributes: Any) -> Any:
        name = attributes.pop("name", None) if takes_name else None
        if name is None:
            try:
                return function(*inputs, **attributes)
            except TypeError:  # as in functions.py
                if not naming.are_symbolic(*inputs, *attributes.values()):
                    raise
            return naming.call_symbolic(public, None, *inputs, **attributes)
        return naming.named(name, public, *inputs, **attributes)

    parameter = inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default=None)
    added = [parameter] if takes_name else []
    public.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    return text.unconverted(public)


_LOADER = Loader("fusedops.tf", ctypes.CDLL(str(library.LIBRARY)), library.add, OPERATORS, _public)


def load(name: str, sources: Sources, *, gradients: Gradients | None = None) -> ModuleType:
    return _LOADER.load(name, sources, gradients)


load.__doc__ = Loader.load.__doc__
text.unconverted(load)
