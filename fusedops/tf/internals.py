"""Private APIs of TensorFlow, gathered here to be checked against each new version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

try:  # used by tf.load_op_library
    from tensorflow.python.framework._pywrap_python_op_gen import GetPythonWrappers as _functions_of
except ImportError:
    _functions_of = None

try:  # used by tf.vectorized_map
    from tensorflow.python.ops.parallel_for import pfor

    register_converter, converted_by_loop = pfor.RegisterPFor, pfor._fallback_converter
    new_operation, converted = pfor._create_op, pfor.wrap
except (ImportError, AttributeError):
    register_converter = converted_by_loop = new_operation = converted = None

EagerTensor = tf.__internal__.EagerTensor
FuncGraph = tf.__internal__.FuncGraph

# The number of elements of an eager tensor. The public x.shape.num_elements() makes a shape object for each new tensor,
# which takes longer than a small kernel.
size: Callable[[tf.Tensor], int] = getattr(EagerTensor, "_num_elements", lambda x: x.shape.num_elements())


def untraced(function: Any) -> Any:
    """A copy of a `tf.function` without its traces. AttributeError or TypeError if this TensorFlow has no such copy."""
    return function._clone(None)


def forget(method: Any, owner: Any) -> None:
    """Drops the traces of a `tf.function` over a method for one object. It raises the errors of `untraced`."""
    method._descriptor_cache.pop(owner, None)


def generated(type: str, op_list: bytes) -> Callable[..., Any]:
    """The Python function of an operator that is in no library, made from a serialized OpList as `tf.load_op_library`
    makes it. There is no public way."""
    if _functions_of is None:
        raise NotImplementedError(f"fusedops.tf: TensorFlow {tf.__version__} cannot have operators of one's own yet")
    module: dict[str, Any] = {"__name__": f"fusedops.tf.raw.{type}"}
    exec(_functions_of(op_list), module)
    # Its name has underscores, which follow from the type, such as RmsNorm, except before digits.
    return next(function for name, function in module.items() if name.replace("_", "") == type.lower())
