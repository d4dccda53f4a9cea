"""TensorFlow's own operators under fusedops's names, for comparison."""

from __future__ import annotations

import tensorflow as tf
from tensorflow import Tensor


def matmul(a: Tensor, b: Tensor, *, transpose_b: bool = False) -> Tensor:
    return tf.matmul(a, b, transpose_b=transpose_b) if b.shape.rank == a.shape.rank else _rows(a, b, transpose_b)


def _rows(a: Tensor, b: Tensor, transpose_b: bool) -> Tensor:
    """One matrix for all of a, as in Keras's dense layers: a single tall product."""
    return tf.tensordot(a, b, [[2], [1 if transpose_b else 0]])


def rms_norm(x: Tensor, weight: Tensor, *, eps: float = 1e-6) -> Tensor:
    return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + eps) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight), total


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, seq_dim: int) -> Tensor:
    assert seq_dim == -2  # cos and sin then have x's last dimensions
    first, second = tf.split(x, 2, -1)
    return tf.concat([first * cos - second * sin, second * cos + first * sin], -1)


def softmax(x: Tensor, *, scale: float, causal: bool) -> Tensor:
    x = x * scale
    if causal:
        kept = tf.linalg.band_part(tf.ones(x.shape[-2:], tf.bool), -1, 0)
        x = tf.where(kept, x, float("-inf"))
    return tf.nn.softmax(x)


def swiglu(packed: Tensor) -> Tensor:
    gate, up = tf.split(packed, 2, -1)
    return tf.nn.silu(gate) * up


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
