"""TensorFlow's own operators under fusedops's names, for comparison."""

from __future__ import annotations

import plain
import tensorflow as tf
from tensorflow import Tensor


def matmul(a: Tensor, b: Tensor, *, transpose_b: bool = False) -> Tensor:
    """A single tall product, as in Keras's dense layers: b is shared by all of a."""
    return tf.tensordot(a, b, [[2], [1 if transpose_b else 0]])


def rms_norm(x: Tensor, weight: Tensor, *, eps: float = 1e-6) -> Tensor:
    return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + eps) * weight


add_rms_norm = plain.of_sum(rms_norm)


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, seq_dim: int) -> Tensor:
    return tf.concat(plain.rotated(*tf.split(x, 2, -1), cos, sin, seq_dim), -1)


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    q, k, v = (tf.transpose(heads, (0, 2, 1, 3)) for heads in (q, k, v))
    scores = tf.matmul(q, k, transpose_b=True) * q.shape[-1] ** -0.5
    if causal:
        visible = tf.linalg.band_part(tf.ones(scores.shape[-2:], tf.bool), -1, 0)
        scores = tf.where(visible, scores, float("-inf"))
    return tf.transpose(tf.matmul(tf.nn.softmax(scores), v), (0, 2, 1, 3))


def swiglu(packed: Tensor) -> Tensor:
    gate, up = tf.split(packed, 2, -1)
    return tf.nn.silu(gate) * up


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
