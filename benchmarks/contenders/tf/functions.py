"""What formulas are written over, in TensorFlow: what its users and Keras write."""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from benchmarks.operators.record import Function

FUNCTIONS = {
    "relu": tf.nn.relu,
    "rsqrt": tf.math.rsqrt,
    "tanh": tf.math.tanh,
    "sigmoid": tf.math.sigmoid,
    "mean": lambda x: tf.reduce_mean(x, axis=-1, keepdims=True),
    "softmax": tf.nn.softmax,
    "cross_entropy": lambda logits, labels: tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    ),
    "join": lambda a, b: tf.concat((a, b), axis=-1),
    "wide": lambda x: tf.cast(x, tf.float32) if x.dtype.size == 2 else x,
    "like": lambda y, x: tf.cast(y, x.dtype),
}


def matmul(transpose_a: bool, transpose_b: bool) -> Function:
    return partial(tf.matmul, transpose_a=transpose_a, transpose_b=transpose_b)
