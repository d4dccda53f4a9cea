"""TensorFlow's functions for the formulas of operators, as users and Keras write them."""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from benchmarks.operators.record import Function


def _attention(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, causal: bool) -> tf.Tensor:
    """Attention over [batch, positions, heads, features], as Keras computes it."""
    scores = tf.einsum("bthd,bshd->bhts", q * q.shape[-1] ** -0.5, k)
    if causal:
        visible = tf.linalg.band_part(tf.ones(scores.shape[-2:], tf.bool), -1, 0)
        scores = tf.where(visible, scores, scores.dtype.min)
    wide = tf.cast(scores, tf.float32) if scores.dtype.size == 2 else scores
    return tf.einsum("bhts,bshd->bthd", tf.cast(tf.nn.softmax(wide), v.dtype), v)


def _log_prob(logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    lse = tf.reduce_logsumexp(logits, axis=-1)
    return tf.gather(logits, labels, axis=-1, batch_dims=1) - lse, lse


def _kl_div(logits: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    log_p, log_q = tf.nn.log_softmax(logits), tf.nn.log_softmax(target)
    return tf.reduce_mean(tf.reduce_sum(tf.exp(log_q) * (log_q - log_p), axis=-1))


FUNCTIONS = {
    "attention": _attention,
    "dropout": tf.nn.dropout,
    "relu": tf.nn.relu,
    "rsqrt": tf.math.rsqrt,
    "tanh": tf.math.tanh,
    "sigmoid": tf.math.sigmoid,
    "mean": lambda x: tf.reduce_mean(x, axis=-1, keepdims=True),
    "softmax": tf.nn.softmax,
    "cross_entropy": lambda logits, labels: tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    ),
    "kl_div": _kl_div,
    "log_prob": _log_prob,
    "join": lambda a, b: tf.concat((a, b), axis=-1),
    "upcast": lambda x: tf.cast(x, tf.float32) if x.dtype.size == 2 else x,
    "like": lambda y, x: tf.cast(y, x.dtype),
    "largest": lambda x: tf.reduce_max(tf.abs(x), axis=-1, keepdims=True),
    "float8": lambda x: x if x.dtype == tf.float64 else tf.cast(x, tf.as_dtype("float8_e4m3fn")),
}


def matmul(transpose_a: bool, transpose_b: bool) -> Function:
    return partial(tf.matmul, transpose_a=transpose_a, transpose_b=transpose_b)
