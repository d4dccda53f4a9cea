"""The types of what the functions take and return."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow import Tensor as Tensor


class MakesTensor(Protocol):
    """What TensorFlow asks for a tensor, such as a keras.Variable."""

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any: ...


class HasVariable(Protocol):
    """What Keras has around a variable of TensorFlow's."""

    @property
    def value(self) -> Any: ...


TensorLike: TypeAlias = tf.Tensor | tf.Variable | np.ndarray[Any, Any] | MakesTensor
Variable: TypeAlias = tf.Variable | HasVariable
