"""Seeds, from TensorFlow's own random numbers."""

from __future__ import annotations

import secrets
from typing import Any

import tensorflow as tf

from fusedops import checks


def seed_of(function: str, seed: Any, _: Any) -> Any:
    """The seed as an operator takes it: a given tensor or pair of integers, or drawn anew in each call or run.

    What is drawn follows tf.random.set_seed.
    """
    if seed is None:
        return _drawn() if tf.executing_eagerly() else tf.random.uniform([2], maxval=tf.int64.max, dtype=tf.int64)
    if hasattr(seed, "dtype"):  # a tensor, or convertible to one
        return seed
    return tf.constant(checks.pair_of_integers(function, "seed", seed), tf.int64)


def _drawn() -> Any:
    """A seed from the host's numbers for eager operations.

    An operation that draws takes ten times as long, and after set_seed a hundred times, since each of its seeds makes
    a kernel.
    """
    pair = [tf.compat.v1.get_seed(None)[1] for _ in range(2)]  # None without set_seed
    return tf.constant([secrets.randbits(63) if x is None else x for x in pair], tf.int64)
