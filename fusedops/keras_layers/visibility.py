"""Attention with the semantics of Keras's layers: the keys that queries see, and queries that see none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keras import ops

from fusedops.functions.common import MAX_FEATURES
from fusedops.keras_layers.backend import fo, is_floating, own
from fusedops.keras_layers.dropout import next_seed


@dataclass(frozen=True)
class Visibility:
    """The keys that each query sees, by positions and by masks of positions where these suffice.

    Attributes:
        make_mask: makes the mask that Keras would use.
        causal: query i sees key j only if j ≤ i + offset.
        offset: [B]; None: zero, and there are as many keys as queries. With an offset there are no masks.
        window: with `causal`, only if j > i + offset - window.
        keys: bool, [B, S]; True makes a key visible.
        queries: bool, [B, T]; a query that is False sees no key.
        lengths: [B]; only keys before this position are visible.
        pairs: bool, [B, T, S], [B, H, T, S] or broadcastable to either; if given, it is the whole mask.
    """

    make_mask: Callable[[], Any]
    causal: bool = False
    offset: Any = None
    window: int | None = None
    keys: Any = None
    queries: Any = None
    lengths: Any = None
    pairs: Any = None

    @property
    def is_positional(self) -> bool:
        """True if there is neither a mask nor an offset."""
        return self.keys is self.queries is self.pairs is self.offset is None

    def mask(self) -> Any:
        """The mask beside causality and window, broadcastable to [B, H, T, S], without that of queries."""
        if self.pairs is not None:
            return with_heads(self.pairs)
        return None if self.keys is None else self.keys[:, None, None, :]

    def without_keys(self) -> Any:
        """True for queries that see no key, broadcastable to [B, T, H, 1]; None if each sees one."""
        if self.pairs is not None:
            seen = ops.any(with_heads(self.pairs), -1, keepdims=True)
            return ops.logical_not(ops.transpose(seen, (0, 2, 1, 3)))
        seen = self.queries
        if self.keys is not None:
            of_keys = self._seen_of_keys(self.keys)
            seen = of_keys if seen is None else ops.logical_and(seen, of_keys)
        return None if seen is None else ops.logical_not(seen)[:, :, None, None]

    def _seen_of_keys(self, keys: Any) -> Any:
        """True for queries that see a key, [B, T] or [B, 1]."""
        if not self.causal:
            return ops.any(keys, -1, keepdims=True)
        # The number of visible keys up to each position, in float32, since GPUs have no cumulative sum of integers.
        count = ops.cumsum(ops.cast(keys, "float32"), -1)
        if self.window is not None:
            before = ops.pad(count, ((0, 0), (self.window, 0)))[:, : ops.shape(count)[1]]
            count = count - before
        return count > 0


def from_mask(mask: Any) -> Visibility:
    """The visibility by a mask [B, T, S] or [B, H, T, S]; None makes every key visible."""
    return Visibility(lambda: mask, pairs=None if mask is None else ops.cast(mask, "bool"))


def with_heads(mask: Any) -> Any:
    """The mask with a dimension of heads before that of queries, as Keras adds it."""
    while len(mask.shape) < 4:
        mask = ops.expand_dims(mask, -3)
    return mask


def keras_mask(mask: Any) -> Any:
    """The mask that Keras's own code takes, from a mask or a `Visibility`."""
    return mask.make_mask() if isinstance(mask, Visibility) else mask


def can_attend(*tensors: Any) -> bool:
    """True if the kernel takes these queries, keys and values: one dtype, [B, positions, heads, features]."""
    first = tensors[0].dtype
    return all(
        len(x.shape) == 4 and x.dtype == first and is_floating(x.dtype) and x.shape[-1] <= MAX_FEATURES for x in tensors
    )


def unsupported_heads(**features: int) -> str | None:
    """The reason why the kernel does not take heads of so many features; None if it does."""
    for name, value in features.items():
        if value > MAX_FEATURES:
            return f"{name} {value} is above {MAX_FEATURES}"
    return None


def attend(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    scale: float,
    *,
    softcap: float = 0.0,
    dropout: float = 0.0,
    dropout_layer: Any = None,
    sinks: Any = None,
    bias: Any = None,
    average_if_masked: bool = False,
) -> Any:
    """Attention of [B, T, H, D] over [B, S, Hk, D].

    Args:
        mask: a `Visibility`, a mask, or None.
        dropout: the rate at which probabilities are dropped in this call, and the layer whose generator gives the seed.
        sinks: [H], one more score of each query.
        bias: is added to the scores.
        average_if_masked: a query that sees no key gets the mean of all values, as from
            `keras.ops.dot_product_attention`; otherwise zeros, as from `keras.layers.Softmax` with a mask.
    """
    visibility = mask if isinstance(mask, Visibility) else from_mask(mask)
    y = fo.attention(
        query,
        key,
        value,
        causal=visibility.causal,
        scale=scale,
        mask=visibility.mask(),
        window=visibility.window,
        lengths=visibility.lengths,
        query_offset=visibility.offset,
        softcap=softcap,
        dropout=dropout,
        seed=next_seed(dropout_layer) if dropout else None,
        sinks=sinks,
        bias=bias,
    )
    without_keys = visibility.without_keys() if average_if_masked or visibility.queries is not None else None
    if without_keys is None:
        return y
    if not average_if_masked:
        return ops.where(without_keys, ops.zeros((), own.name_of(y.dtype)), y)
    mean = ops.mean(value, 1, keepdims=True)
    return ops.where(without_keys, ops.repeat(mean, query.shape[2] // value.shape[2], 2), y)
