"""JAX's version of the tensor functions in gradient formulas, which fusedops/gradients/__init__.py lists."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fusedops.jax.operators import OPERATORS


def _diagonal(x: Array, first: Array | None) -> Array:
    rows = jnp.arange(x.shape[-2], dtype=jnp.int32)[:, None]
    return rows + (x.shape[-1] - x.shape[-2] if first is None else first[..., None, None, None])


def _beside_sinks(scores: Array, masks: Sequence[Array], sinks: Array) -> tuple[Array, list[Array]]:
    column = jnp.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1))
    visible = jnp.broadcast_to(functools.reduce(jnp.logical_and, masks, jnp.array(True)), scores.shape)
    return jnp.concatenate([scores, column], -1), [jnp.concatenate([visible, jnp.ones_like(column, bool)], -1)]


def _packed(x: Array, offsets_q: Array, offsets_k: Array) -> tuple[Array, Array, Array]:
    rows = jnp.arange(x.shape[-2], dtype=jnp.int32)
    query_segment = jnp.searchsorted(offsets_q[1:], rows, side="right")
    key_segment = jnp.searchsorted(offsets_k[1:], FUNCTIONS["columns"](x), side="right")
    further = jnp.pad((offsets_k - offsets_q)[1:], (0, 1))  # padded for rows behind the last sequence
    return query_segment[:, None], key_segment, (rows + further[query_segment])[:, None]


# Softmax and products are operators of fusedops: JAX's own product of float32 takes TF32 on a GPU.
def _probabilities(scores: Array, masks: Sequence[Array]) -> Array:
    return OPERATORS.softmax(scores, functools.reduce(jnp.logical_and, masks) if masks else None, None)


def _log_sum_exp(scores: Array, masks: Sequence[Array]) -> Array:
    visible = jnp.broadcast_to(functools.reduce(jnp.logical_and, masks, jnp.array(True)), scores.shape)
    lowered = jnp.where(visible, scores, jnp.finfo(scores.dtype).min)
    return jnp.where(visible.any(-1), jax.nn.logsumexp(lowered, -1), -jnp.inf)


def _product(a: Array, b: Array) -> Array:
    """The matrix product, also of a vector, as in torch.matmul."""
    return OPERATORS.matmul(a[None], b)[0] if a.ndim == 1 else OPERATORS.matmul(a, b)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "absolute": jnp.abs,
    "alternating": lambda x: (x[..., ::2], x[..., 1::2]),
    "diagonal": _diagonal,
    "beside_sinks": _beside_sinks,
    "broadcast": lambda x, like: jnp.broadcast_to(x, like.shape),
    "but_last": lambda x: x[..., :-1],
    "cast": lambda x, like: x.astype(like.dtype),
    "clamp": lambda x, low, high: jnp.where(x > high, high, jnp.where(x < low, low, x)),
    "columns": lambda x: jnp.arange(x.shape[-1], dtype=jnp.int32),
    "compute": lambda x: x if x.dtype == jnp.float64 else x.astype(jnp.float32),
    "constant": jax.lax.stop_gradient,
    "erf": jax.lax.erf,
    "exchange_heads": lambda x: jnp.swapaxes(x, -3, -2),
    "expand_last": lambda x: x[..., None],
    "features": lambda x: x.shape[-1],
    "first": lambda x: x[..., 0],
    "halves": lambda x: jnp.split(x, 2, -1),
    "log": jnp.log,
    "log_softmax": lambda x: jax.nn.log_softmax(x, -1),
    "log_sum_exp": _log_sum_exp,
    "mean_last": lambda x: x.mean(-1, keepdims=True),
    "multiply": jnp.multiply,
    "one_hot": lambda labels, like: labels[..., None] == jnp.arange(like.shape[-1], dtype=labels.dtype),
    "packed": _packed,
    "probabilities": _probabilities,
    "product": _product,
    # jnp.repeat would ask for a sharding on explicit axes.
    "repeat_heads": lambda x, like: jnp.broadcast_to(
        x[..., None, :, :], (*x.shape[:-2], like.shape[-3] // max(x.shape[-3], 1), *x.shape[-2:])
    ).reshape(*x.shape[:-3], like.shape[-3], *x.shape[-2:]),
    "repeat_rows": lambda x, like: jnp.broadcast_to(x, (like.shape[0], *x.shape)),
    "rows": lambda x: x.reshape(math.prod(x.shape[:-1]), x.shape[-1]),
    "rows_as": lambda x, like: x.reshape(*like.shape[:-1], x.shape[-1]),
    "rsqrt": jax.lax.rsqrt,
    "sigmoid": jax.nn.sigmoid,
    "sum": jnp.sum,
    "sum_last": lambda x: x.sum(-1, keepdims=True),
    "tanh": jnp.tanh,
    "transpose_last": lambda x: jnp.swapaxes(x, -2, -1),
    "unequal": jnp.not_equal,
    "vjp": lambda function, inputs, upstream: jax.vjp(function, *inputs)[1](upstream),
    "where": lambda condition, x: jnp.where(condition, x, jnp.zeros_like(x)),
}
