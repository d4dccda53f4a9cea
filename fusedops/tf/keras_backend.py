"""TensorFlow under Keras's layers.

Members:
    TITLE: the framework's name.
    TENSOR: the type of dense tensors.
    TENSORS: this type, and those of variables.
    ERRORS: the error of an operator that refuses its arguments.
    LABELS: the dtype of labels. On a GPU, TensorFlow compares int32 on the host.
    xla_fault: the reason why XLA cannot compile the operators; None if it can.
    name_of: the name of a dtype, which may be given by name.
    has_gpu: True if there is a GPU.
    seed_of: the next seed of a generator of Keras's, which saves its state.
    summed: the sum of two tensors of one shape, which may be unknown; they are not broadcast.
    are_eager: True if no graph or model records a call, and Keras would pass its inputs of this dtype on unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from fusedops.keras_layers.internals import get_keras_mask
from fusedops.tf import xla
from fusedops.tf.internals import EagerTensor
from fusedops.tf.library import DTYPES

FLOATING = frozenset(dtype for dtype in DTYPES if dtype.is_floating)  # of optimizers
TITLE = "TensorFlow"
TENSOR = tf.Tensor
TENSORS = (TENSOR, tf.Variable, keras.Variable)
ERRORS = (tf.errors.InvalidArgumentError,)
LABELS = "int64"


def xla_fault() -> str | None:
    return xla.fault


def name_of(dtype: Any) -> str:
    name: str = tf.as_dtype(dtype).name
    return name


@functools.cache
def has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


def seed_of(generator: Any) -> tf.Tensor:
    return tf.cast(generator.next(), tf.int64)


def summed(x: Any, y: Any) -> Any:
    return tf.add_n([x, y]) if isinstance(x, tf.Tensor) else x + y


def are_eager(inputs: Sequence[Any], dtype: str) -> bool:
    return tf.executing_eagerly() and all(
        type(x) is EagerTensor and x.dtype.name == dtype and get_keras_mask(x) is None for x in inputs
    )
