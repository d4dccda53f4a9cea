"""What is taken from TensorFlow beyond its public API: the one place to look at when a new version of it appears."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

try:  # of tf.load_op_library
    from tensorflow.python.framework._pywrap_python_op_gen import GetPythonWrappers as _functions_of
except ImportError:
    _functions_of = None

try:  # of tf.vectorized_map
    from tensorflow.python.ops.parallel_for import pfor

    register_converter, converted_by_loop = pfor.RegisterPFor, pfor._fallback_converter
    new_operation, converted = pfor._create_op, pfor.wrap
except (ImportError, AttributeError):
    register_converter = converted_by_loop = new_operation = converted = None

EagerTensor = tf.__internal__.EagerTensor
FuncGraph = tf.__internal__.FuncGraph

# Of an eager tensor. The public way, x.shape.num_elements(), makes an object for the shape of each new tensor, which
# takes longer than a small kernel.
size: Callable[[tf.Tensor], int] = getattr(EagerTensor, "_num_elements", lambda x: x.shape.num_elements())


def untraced(function: Any) -> Any:
    """A `tf.function` like this one without its traces; AttributeError or TypeError where that is unknown."""
    return function._clone(None)


def forget(method: Any, owner: Any) -> None:
    """Drops the traces that a `tf.function` over a method has for an object, or raises as `untraced` does."""
    method._descriptor_cache.pop(owner, None)


def generated(type: str, op_list: bytes) -> Callable[..., Any]:
    """The Python function of an operator that no library has brought, as `tf.load_op_library` makes it of a serialized
    OpList: there is no public way."""
    if _functions_of is None:
        raise NotImplementedError(f"fusedops.tf: TensorFlow {tf.__version__} cannot have operators of one's own yet")
    module: dict[str, Any] = {"__name__": f"fusedops.tf.raw.{type}"}
    exec(_functions_of(op_list), module)
    # Its name has underscores, which the type, RmsNorm, tells except for those before digits.
    return next(function for name, function in module.items() if name.replace("_", "") == type.lower())
