"""JAX's functions for the formulas of operators, as users write them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from benchmarks.operators.record import Function


def _upcast(x: Array) -> Array:
    return x.astype(jnp.float32) if x.dtype.itemsize == 2 else x


def _log_prob(logits: Array, labels: Array) -> tuple[Array, Array]:
    lse = jax.nn.logsumexp(logits, -1)
    return jnp.take_along_axis(logits, labels[:, None], -1)[:, 0] - lse, lse


FUNCTIONS = {
    "attention": lambda q, k, v, causal: jax.nn.dot_product_attention(q, k, v, is_causal=causal),
    "relu": jax.nn.relu,
    "rsqrt": jax.lax.rsqrt,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "mean": lambda x: x.mean(-1, keepdims=True),
    "softmax": jax.nn.softmax,
    "cross_entropy": lambda logits, labels: -_log_prob(logits, labels)[0].mean(),
    "log_prob": _log_prob,
    "join": lambda a, b: jnp.concatenate((a, b), -1),
    "upcast": _upcast,
    "like": lambda y, x: y.astype(x.dtype),
}


def matmul(transpose_a: bool, transpose_b: bool) -> Function:
    return lambda a, b: (a.mT if transpose_a else a) @ (b.mT if transpose_b else b)
