"""Fused operators for TensorFlow: the functions of `fusedops.functions` over TensorFlow tensors.

They are differentiable to any order, in reverse and forward mode, and work eagerly, in `tf.function` and in
SavedModels. The bare operators are in `tf.load_op_library(library_path())`, named `Fusedops...`, and need no import of
this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusedops import lazy, loading

loading.library("tf")  # says what is missing before TensorFlow is imported

# Derivatives, mapping and xla register gradients, converters of tf.vectorized_map, and XLA kernels when imported.
from fusedops.tf import derivatives, functions, library, mapping, xla  # noqa: E402, F401
from fusedops.tf.functions import *  # noqa: E402, F403
from fusedops.tf.naming import has_keras  # noqa: E402
from fusedops.tf.operators import OPERATORS as ops  # noqa: E402, F401

if TYPE_CHECKING:
    from fusedops.tf import keras as keras
    from fusedops.tf.libraries import load as load


def library_path() -> str:
    """The path of the compiled operators, for `tf.load_op_library`."""
    return str(library.LIBRARY)


# Lazy, since Keras needs version 3 over TensorFlow, and the operators do not need Keras.
_LAZY = {"keras": "fusedops.tf.keras", "load": "fusedops.tf.libraries"}
if not TYPE_CHECKING:  # hidden from type checkers, which would accept any attribute
    __getattr__ = lazy.members(__name__, _LAZY)

__all__ = ["library_path", "load"]
__all__ += functions.__all__


def __dir__() -> list[str]:
    return sorted({*__all__, *_LAZY, "ops"})


if has_keras():
    from fusedops.tf import symbolic as symbolic  # for its effect: Keras can load models that use the functions
