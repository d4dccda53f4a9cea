"""Attention as Keras's layers compute it: which keys a query sees, and what a query gets that sees none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

import fusedops.tf as fo
from fusedops.tf.keras.layer import FLOATING

MOST_FEATURES = 256  # of a head


@dataclass(frozen=True)
class Kept:
    """Which keys each query sees, told by positions and by masks of positions as far as they tell it all.

    Attributes:
        everything: makes the mask that Keras would use.
        causal: keeps key j of query i where j ≤ i, of as many keys as queries.
        window: with `causal`, keeps only j > i - window.
        keys: bool, [B, S]; True keeps a key.
        queries: bool, [B, T]; a query that is False sees no key.
        lengths: [B]; only keys before it are kept.
        pairs: bool, [B, T, S], [B, H, T, S] or broadcastable to either: if not None, it tells everything.
    """

    everything: Callable[[], tf.Tensor]
    causal: bool = False
    window: int | None = None
    keys: tf.Tensor | None = None
    queries: tf.Tensor | None = None
    lengths: tf.Tensor | None = None
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


def keras_mask(mask: Any) -> Any:
    """The mask that Keras's own code takes, of one or of what is kept."""
    return mask.everything() if isinstance(mask, Kept) else mask


def fit(*tensors: tf.Tensor) -> bool:
    """Whether the kernel takes these queries, keys and values: of one dtype, [B, positions, heads, features]."""
    first = tensors[0].dtype
    return all(
        len(x.shape) == 4 and x.dtype == first and x.dtype in FLOATING and x.shape[-1] <= MOST_FEATURES for x in tensors
    )


def too_many(**features: int) -> str | None:
    """Why the kernel does not take heads of so many features, if so."""
    for name, value in features.items():
        if value > MOST_FEATURES:
            return f"{name} {value} is above {MOST_FEATURES}"
    return None


def attend(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    mask: Any,
    scale: float,
    *,
    softcap: float = 0.0,
    dropout: float = 0.0,
    dropout_layer: Any = None,
    mean_of_nothing: bool = False,
) -> tf.Tensor:
    """Attention of [B, T, H, D] over [B, S, Hk, D].

    Args:
        mask: what is kept, or a mask of it, or None.
        dropout: the rate at which probabilities are dropped in this call, and the layer whose generator gives the seed.
        mean_of_nothing: a query that sees no key gets the mean of all values, as from
            `keras.ops.dot_product_attention`; otherwise zeros, as from `keras.layers.Softmax` with a mask.
    """
    kept = mask if isinstance(mask, Kept) else of_pairs(mask)
    y = fo.attention(
        query,
        key,
        value,
        causal=kept.causal,
        scale=scale,
        mask=kept.mask(),
        window=kept.window,
        lengths=kept.lengths,
        softcap=softcap,
        dropout=dropout,
        seed=tf.cast(dropout_layer.seed_generator.next(), tf.int64) if dropout else None,
    )
    blind = kept.blind() if mean_of_nothing or kept.queries is not None else None
    if blind is None:
        return y
    if not mean_of_nothing:
        return tf.where(blind, tf.zeros([], y.dtype), y)
    mean = tf.reduce_mean(value, 1, keepdims=True)
    return tf.where(blind, tf.repeat(mean, query.shape[2] // value.shape[2], 2), y)
