"""The functions of tensors that gradient formulas use, for TensorFlow: `fusedops/gradients/__init__.py` lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def _compute(x: tf.Tensor) -> tf.Tensor:
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


def _where(condition: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    return tf.where(condition, x, tf.zeros_like(x))


def _one_hot(labels: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    columns = tf.cast(tf.shape(like)[-1], labels.dtype)
    return tf.equal(tf.expand_dims(labels, -1), tf.range(columns, dtype=labels.dtype))


def _vjp(function: Callable[..., Any], inputs: Sequence[tf.Tensor], upstream: Any) -> Sequence[tf.Tensor]:
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(inputs)
        outputs = function(*inputs)
    return tape.gradient(outputs, inputs, upstream, tf.UnconnectedGradients.ZERO)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cast": lambda x, like: tf.cast(x, like.dtype),
    "compute": _compute,
    "constant": tf.stop_gradient,
    "erf": tf.math.erf,
    "expand_last": lambda x: tf.expand_dims(x, -1),
    "first": lambda x: tf.squeeze(x, -1),
    "halves": lambda x: tf.split(x, 2, -1),
    "log_softmax": tf.nn.log_softmax,
    "mean_last": lambda x: tf.reduce_mean(x, -1, keepdims=True),
    "multiply": tf.multiply,
    "one_hot": _one_hot,
    "rsqrt": tf.math.rsqrt,
    "sigmoid": tf.sigmoid,
    "sum": tf.reduce_sum,
    "sum_last": lambda x: tf.reduce_sum(x, -1, keepdims=True),
    "tanh": tf.tanh,
    "unequal": tf.not_equal,
    "vjp": _vjp,
    "where": _where,
}
