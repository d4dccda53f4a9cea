"""TensorFlow's version of the tensor functions in gradient formulas, which fusedops/gradients/__init__.py lists."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fusedops.tf.operators import OPERATORS


def _compute(x: tf.Tensor) -> tf.Tensor:
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


def _where(condition: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    return tf.where(condition, x, tf.zeros_like(x))


def _one_hot(labels: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    columns = tf.cast(tf.shape(like)[-1], labels.dtype)
    return tf.equal(tf.expand_dims(labels, -1), tf.range(columns, dtype=labels.dtype))


def _columns(x: tf.Tensor) -> tf.Tensor:
    return tf.range(tf.shape(x)[-1])


def _diagonal(x: tf.Tensor, first: tf.Tensor | None) -> tf.Tensor:
    rows, columns = tf.shape(x)[-2], tf.shape(x)[-1]
    diagonal = columns - rows if first is None else tf.cast(first, tf.int32)[..., None, None, None]
    return tf.expand_dims(tf.range(rows), -1) + diagonal


def _beside_sinks(scores: tf.Tensor, masks: Sequence[tf.Tensor], sinks: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
    column = tf.broadcast_to(sinks[:, None, None], tf.concat([tf.shape(scores)[:-1], [1]], 0))
    visible = functools.reduce(tf.logical_and, masks, tf.ones_like(scores, tf.bool))
    return tf.concat([scores, column], -1), [tf.concat([visible, tf.ones_like(column, tf.bool)], -1)]


def _packed(x: tf.Tensor, offsets_q: tf.Tensor, offsets_k: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    rows = tf.range(tf.shape(x)[-2])
    query_segment = tf.searchsorted(offsets_q[1:], rows, side="right")
    key_segment = tf.searchsorted(offsets_k[1:], _columns(x), side="right")
    further = tf.pad((offsets_k - offsets_q)[1:], [[0, 1]])  # padded for rows behind the last sequence
    diagonal = rows + tf.gather(further, query_segment)
    return tf.expand_dims(query_segment, -1), key_segment, tf.expand_dims(diagonal, -1)


def _exchanged(x: tf.Tensor, places: Sequence[int]) -> tf.Tensor:
    """x with its last dimensions in this order."""
    if x.shape.rank is None:
        leading = tf.rank(x) - len(places)
        return tf.transpose(x, tf.concat([tf.range(leading), leading + tf.constant(places)], 0))
    leading = x.shape.rank - len(places)
    return tf.transpose(x, [*range(leading), *(leading + place for place in places)])


def _repeat_heads(x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    times = tf.shape(like)[-3] // tf.maximum(tf.shape(x)[-3], 1)
    if x.shape.rank is None:  # tf.repeat takes no axis counted from the end
        leading, last = tf.shape(x)[:-2], tf.shape(x)[-2:]
        repeated = tf.broadcast_to(tf.expand_dims(x, -3), tf.concat([leading, [times], last], 0))
        return tf.reshape(repeated, tf.concat([leading[:-1], leading[-1:] * times, last], 0))
    return tf.repeat(x, times, axis=x.shape.rank - 3)


# Softmax and products are operators of fusedops. TensorFlow's call oneDNN on some CPUs, where a softmax of more than
# five dimensions is an error, and products of some sizes (no terms, batches of one row) end the process.
def _probabilities(scores: tf.Tensor, masks: Sequence[tf.Tensor]) -> tf.Tensor:
    return OPERATORS.softmax(scores, functools.reduce(tf.logical_and, masks) if masks else None, None)


def _log_sum_exp(scores: tf.Tensor, masks: Sequence[tf.Tensor]) -> tf.Tensor:
    """Unlike tf.reduce_logsumexp, it has derivatives of second order where no score is visible: zeros."""
    visible = tf.broadcast_to(functools.reduce(tf.logical_and, masks, tf.constant(True)), tf.shape(scores))
    lowered = tf.where(visible, scores, scores.dtype.min)
    largest = tf.stop_gradient(tf.reduce_max(lowered, -1, keepdims=True))
    largest = tf.where(tf.math.is_finite(largest), largest, tf.zeros_like(largest))
    exponentials = tf.exp(lowered - largest)
    total = tf.reduce_sum(tf.where(visible, exponentials, tf.zeros_like(exponentials)), -1)
    is_empty = total == 0
    sums = tf.math.log(tf.where(is_empty, tf.ones_like(total), total)) + largest[..., 0]
    return tf.where(is_empty, tf.constant(float("-inf"), sums.dtype), sums)


def _vjp(function: Callable[..., Any], inputs: Sequence[tf.Tensor], upstream: Any) -> Sequence[tf.Tensor]:
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(inputs)
        outputs = function(*inputs)
    return tape.gradient(outputs, inputs, upstream, tf.UnconnectedGradients.ZERO)


def _product(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """The matrix product, also of a vector, as in torch.matmul."""
    if a.shape.rank is None:
        rows = tf.reshape(a, tf.concat([tf.ones([tf.maximum(2 - tf.rank(a), 0)], tf.int32), tf.shape(a)], 0))
        return tf.reshape(OPERATORS.matmul(rows, b), tf.concat([tf.shape(a)[:-1], tf.shape(b)[-1:]], 0))
    if a.shape.rank == 1:
        return tf.squeeze(OPERATORS.matmul(tf.expand_dims(a, 0), b), 0)
    return OPERATORS.matmul(a, b)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "absolute": tf.abs,
    "alternating": lambda x: (x[..., ::2], x[..., 1::2]),
    "diagonal": _diagonal,
    "beside_sinks": _beside_sinks,
    "broadcast": lambda x, like: tf.broadcast_to(x, tf.shape(like)),
    "but_last": lambda x: x[..., :-1],
    "cast": lambda x, like: tf.cast(x, like.dtype),
    "clamp": tf.clip_by_value,
    "columns": _columns,
    "compute": _compute,
    "constant": tf.stop_gradient,
    "erf": tf.math.erf,
    "exchange_heads": lambda x: _exchanged(x, (1, 0, 2)),
    "expand_last": lambda x: tf.expand_dims(x, -1),
    "features": lambda x: tf.cast(tf.shape(x)[-1], x.dtype),
    "first": lambda x: tf.squeeze(x, -1),
    "halves": lambda x: tf.split(x, 2, -1),
    "log": tf.math.log,
    "log_softmax": tf.nn.log_softmax,
    "log_sum_exp": _log_sum_exp,
    "mean_last": lambda x: tf.reduce_mean(x, -1, keepdims=True),
    "multiply": tf.multiply,
    "one_hot": _one_hot,
    "packed": _packed,
    "probabilities": _probabilities,
    "product": _product,
    "repeat_heads": _repeat_heads,
    "repeat_rows": lambda x, like: tf.broadcast_to(x, tf.concat([tf.shape(like)[:1], tf.shape(x)], 0)),
    "rows": lambda x: tf.reshape(x, [tf.reduce_prod(tf.shape(x)[:-1]), tf.shape(x)[-1]]),
    "rows_as": lambda x, like: tf.reshape(x, tf.concat([tf.shape(like)[:-1], tf.shape(x)[-1:]], 0)),
    "rsqrt": tf.math.rsqrt,
    "sigmoid": tf.sigmoid,
    "sum": tf.reduce_sum,
    "sum_last": lambda x: tf.reduce_sum(x, -1, keepdims=True),
    "tanh": tf.tanh,
    "transpose_last": lambda x: _exchanged(x, (1, 0)),
    "unequal": tf.not_equal,
    "vjp": _vjp,
    "where": _where,
}
