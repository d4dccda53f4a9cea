"""The types of the functions' arguments and results."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow import Tensor as Tensor


class MakesTensor(Protocol):
    """An object that TensorFlow converts to a tensor, such as a keras.Variable."""

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any: ...


class HasVariable(Protocol):
    """An object around a TensorFlow variable, such as a keras.Variable."""

    @property
    def value(self) -> Any: ...


TensorLike: TypeAlias = tf.Tensor | tf.Variable | np.ndarray[Any, Any] | MakesTensor
Variable: TypeAlias = tf.Variable | HasVariable
