"""What is taken from TensorFlow beyond its public API: the one place to look at when a new version of it appears."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

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
