"""Tests for tapes that record a call for a backward."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record


def may_need_gradient(*_: Any) -> bool:
    """True if a tape is open, in a graph within the traced function.

    If a function is traced without a tape and differentiated as a whole, its backward recomputes unsaved tensors.
    """
    return bool(record.could_possibly_record())


def may_keep_gradient(x: Any) -> bool:
    """True if an open tape watches x, or will once it reads x, a trainable variable.

    An unused result costs as much as a used one, so that graphs for inference must not have it.
    """
    if not may_need_gradient():
        return False
    is_variable = hasattr(x, "trainable")
    return bool(x.trainable) if is_variable else tf.is_tensor(x) and is_watched(x)


def is_watched(tensor: Any) -> bool:
    """True if a tape will ask for the gradient of results of the tensor."""
    return bool(record.should_record_backprop([tensor]))
