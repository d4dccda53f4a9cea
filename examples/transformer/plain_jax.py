"""JAX's own operators under fusedops's names, for comparison."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import plain
from jax import Array


def matmul(a: Array, b: Array, *, transpose_b: bool = False) -> Array:
    return a @ (b.T if transpose_b else b)


def rms_norm(x: Array, weight: Array, *, eps: float = 1e-6) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


add_rms_norm = plain.of_sum(rms_norm)


def rope(x: Array, cos: Array, sin: Array, *, seq_dim: int) -> Array:
    return jnp.concatenate(plain.rotated(*jnp.split(x, 2, -1), cos, sin, seq_dim), -1)


def attention(q: Array, k: Array, v: Array, *, causal: bool) -> Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal)


def swiglu(packed: Array) -> Array:
    gate, up = jnp.split(packed, 2, -1)
    return jax.nn.silu(gate) * up


def cross_entropy(logits: Array, labels: Array) -> Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()
