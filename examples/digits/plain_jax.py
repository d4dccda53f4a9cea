"""JAX's own operators under fusedops's names, for comparison."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from plain import axpby as axpby
from plain import polynomial_activation as polynomial_activation

add = jnp.add
matmul = jnp.matmul
relu = jax.nn.relu
scale = jnp.multiply
