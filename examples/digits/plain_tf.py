"""TensorFlow's own operators under fusedops' names: what a network is made of without fusedops."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

add = tf.add
matmul = tf.linalg.matmul
relu = tf.nn.relu
scale = tf.multiply


def axpby(a: tf.Tensor, x: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return a * x + b


def polynomial_activation(x: tf.Tensor, coefficients: Sequence[float]) -> tf.Tensor:
    *rest, y = coefficients
    for coefficient in reversed(rest):
        y = y * x + coefficient
    return y
