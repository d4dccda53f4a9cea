"""Attention as Keras's layers compute it: which keys a query sees, and what a query gets that sees none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

import fusedops.tf as fo


@dataclass(frozen=True)
class Kept:
    """Which keys each query sees, told by positions and by masks of positions as far as they tell it all.

    Attributes:
        everything: makes the mask that Keras would use.
        causal: keeps key j of query i where j ≤ i, of as many keys as queries.
        window: with `causal`, keeps only j > i - window.
        keys: bool, [B, S]; True keeps a key.
        queries: bool, [B, T]; a query that is False sees no key.
        pairs: bool, [B, T, S], [B, H, T, S] or broadcastable to either: if not None, it tells everything.
    """

    everything: Callable[[], tf.Tensor]
    causal: bool = False
    window: int | None = None
    keys: tf.Tensor | None = None
    queries: tf.Tensor | None = None
    pairs: tf.Tensor | None = None

    @property
    def is_positional(self) -> bool:
        """Whether there is no mask."""
        return self.keys is None and self.queries is None and self.pairs is None

    def mask(self) -> tf.Tensor | None:
        """What is to be kept beside causality and the window, broadcastable to [B, H, T, S]; not that of queries."""
        if self.pairs is not None:
            return of_heads(self.pairs)
        return None if self.keys is None else self.keys[:, None, None, :]

    def blind(self) -> tf.Tensor | None:
        """Which queries see no key, bool, broadcastable to [B, T, H, 1]; None: each sees one."""
        if self.pairs is not None:
            seen = tf.reduce_any(of_heads(self.pairs), -1, keepdims=True)
            return tf.logical_not(tf.transpose(seen, [0, 2, 1, 3]))
        seen = self.queries
        if self.keys is not None:
            of_keys = self._seen_of_keys(self.keys)
            seen = of_keys if seen is None else tf.logical_and(seen, of_keys)
        return None if seen is None else tf.logical_not(seen)[:, :, None, None]

    def _seen_of_keys(self, keys: tf.Tensor) -> tf.Tensor:
        """Which queries see a key, [B, T] or [B, 1]."""
        if not self.causal:
            return tf.reduce_any(keys, -1, keepdims=True)
        # How many keys stand before each position: in float32, since GPUs have no sum of integers.
        count = tf.cumsum(tf.cast(keys, tf.float32), -1)
        if self.window is not None:
            before = tf.pad(count, [[0, 0], [self.window, 0]])[:, : tf.shape(count)[1]]
            count = count - before
        return count > 0


def of_pairs(mask: tf.Tensor | None) -> Kept:
    """What a mask keeps, [B, T, S] or [B, H, T, S]; None keeps everything."""
    return Kept(lambda: mask, pairs=None if mask is None else tf.cast(mask, tf.bool))


def of_heads(mask: tf.Tensor) -> tf.Tensor:
    """With a dimension of heads, as Keras adds it: in front of that of queries."""
    while len(mask.shape) < 4:
        mask = tf.expand_dims(mask, -3)
    return mask


def attend(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, kept: Kept, scale: float, *, mean_of_nothing: bool
) -> tf.Tensor:
    """Attention of [B, T, H, D] over [B, S, Hk, D].

    Args:
        mean_of_nothing: a query that sees no key gets the mean of all values, as from
            `keras.ops.dot_product_attention`; otherwise zeros, as from `keras.layers.Softmax` with a mask.
    """
    y = fo.attention(query, key, value, causal=kept.causal, window=kept.window, mask=kept.mask(), scale=scale)
    blind = kept.blind() if mean_of_nothing or kept.queries is not None else None
    if blind is None:
        return y
    if not mean_of_nothing:
        return tf.where(blind, tf.zeros([], y.dtype), y)
    mean = tf.reduce_mean(value, 1, keepdims=True)
    return tf.where(blind, tf.repeat(mean, query.shape[2] // value.shape[2], 2), y)
