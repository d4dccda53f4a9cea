"""Seeds, from JAX's keys."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fusedops import checks
from fusedops.jax.library import array, has_int64
from fusedops.jax.tensors import is_array


def seed_of(function: str, seed: Any, _: Any) -> Any:
    """The seed as an operator takes it: int64 [2], a key and an offset, or the same bits as uint32 [2, 2].

    The words of a key of jax.random are the seed's key, with the offset 0. JAX has no generator that could draw a seed.
    """
    if seed is None:
        expected = "a key of jax.random, an int64 tensor of shape [2] or a pair of integers"
        raise TypeError(f"fusedops.{function}: seed must be {expected}; got None")
    if not is_array(seed):
        integers = np.array(checks.pair_of_integers(function, "seed", seed), np.int64)
        return jnp.asarray(integers.view(np.uint32).reshape(2, 2))
    seed = array(seed)
    if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        if seed.shape:
            raise ValueError(f"fusedops.{function}: seed must be one key; got keys of shape {[*seed.shape]}")
        seed = jax.random.key_data(seed)
    if seed.dtype == jnp.uint32 and seed.ndim == 1 and seed.size in (2, 4):  # the words of a key
        return jnp.pad(seed, (0, 4 - seed.size)).reshape(2, 2)
    if not has_int64() and seed.dtype == jnp.int32 and seed.shape == (2,):
        low = jax.lax.bitcast_convert_type(seed, jnp.uint32)
        return jnp.stack([low, jax.lax.bitcast_convert_type(seed >> 31, jnp.uint32)], -1)
    return seed  # the operator checks it
