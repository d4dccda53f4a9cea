"""The functions over the tensors of Keras's backend. No other module asks which backend that is.

`own` is the package's module for what Keras has no neutral form of; fusedops/tf/keras_backend.py documents its members.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import keras

from fusedops.keras_layers.versions import PACKAGES

PACKAGE = PACKAGES[keras.backend.backend()]
fo: Any = import_module(PACKAGE)
own: Any = import_module(f"{PACKAGE}.keras_backend")

_FLOATING = frozenset({"float64", "float32", "float16", "bfloat16"})


def is_floating(dtype: Any) -> bool:
    return own.name_of(dtype) in _FLOATING


def rank_of(x: Any) -> int | None:
    """The number of dimensions of a tensor; None if it is unknown."""
    shape = x.shape  # a new object each time in TensorFlow
    return len(shape) if isinstance(shape, tuple) else shape.rank
