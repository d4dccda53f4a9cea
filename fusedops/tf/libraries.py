"""User-defined operators for TensorFlow."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fusedops import libraries
from fusedops.declarations import Operator
from fusedops.functions import NAME
from fusedops.libraries import Gradients, Loader, Sources
from fusedops.tf import library, text
from fusedops.tf.naming import with_name
from fusedops.tf.operators import OPERATORS


def _public(operator: Operator, call: Callable[..., Any]) -> Callable[..., Any]:
    function = libraries.public(operator, call)
    signature = inspect.signature(function)
    added = [] if "name" in signature.parameters else [NAME.replace(annotation=NAME.empty)]
    return with_name(function, signature.replace(parameters=[*signature.parameters.values(), *added]))


_LOADER = Loader("fusedops.tf", ctypes.CDLL(str(library.LIBRARY)), library.add, OPERATORS, _public)


def load(name: str, sources: Sources, *, gradients: Gradients | None = None) -> ModuleType:
    return _LOADER.load(name, sources, gradients)


load.__doc__ = Loader.load.__doc__
text.unconverted(load)
