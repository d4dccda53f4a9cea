"""Seeds, from TensorFlow's own random numbers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusedops import checks


def seed_of(function: str, seed: Any, _: Any) -> Any:
    """The seed as an operator takes it: a given tensor or pair of integers, or drawn by an operation.

    The operation draws anew whenever it runs, and follows tf.random.set_seed.
    """
    if seed is None:
        return tf.random.uniform([2], maxval=tf.int64.max, dtype=tf.int64)
    if hasattr(seed, "dtype"):  # a tensor, or convertible to one
        return seed
    return tf.constant(checks.pair_of_integers(function, "seed", seed), tf.int64)
