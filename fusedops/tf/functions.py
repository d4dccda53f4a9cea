"""The public functions over TensorFlow's tensors; their types are in functions.pyi, which `make stubs` writes."""

from typing import TYPE_CHECKING

from fusedops.functions import public
from fusedops.tf.naming import named
from fusedops.tf.operators import OPERATORS as ops  # noqa: F401
from fusedops.tf.tensors import Tensor, TensorLike  # noqa: F401

if TYPE_CHECKING:
    from fusedops.functions import *  # noqa: F403  where editors find descriptions

globals().update(_public := {name: named(function) for name, function in public(globals()).items()})
__all__ = list(_public)
