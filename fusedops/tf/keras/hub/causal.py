"""Causal attention, without a mask of all pairs of positions.

A decoder of KerasHub makes a mask [B, T, S] of padding and causality. Ours passes a `Visibility` to an attention of
ours: causality as a flag, the padding, and the place of the queries in a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf
from keras_hub.src.layers.modeling.transformer_layer_utils import merge_padding_and_attention_mask

from fusedops.keras_layers.visibility import Visibility, from_mask


def decoder_visibility(
    make_mask: Callable[[], tf.Tensor],
    inputs: tf.Tensor,
    padding_mask: Any,
    attention_mask: Any = None,
    cache: Any = None,
    cache_update_index: Any = None,
    window: int | None = None,
) -> Visibility:
    """The visibility in a decoder with these arguments. `make_mask` makes the decoder's own mask."""
    index = 0 if cache_update_index is None else cache_update_index
    length = inputs.shape[1]
    from_start = isinstance(index, int) and index == 0
    is_square = cache is None or (from_start and length is not None and length == cache.shape[2])
    if attention_mask is not None:
        return replace(from_mask(make_mask()), causal=is_square)
    padding = merge_padding_and_attention_mask(inputs, padding_mask, None)  # [B, 1, T]
    if is_square:
        keys = None if padding is None else tf.cast(padding[:, 0], tf.bool)
        return Visibility(make_mask, causal=True, window=window, keys=keys)
    if padding is not None:
        return from_mask(make_mask())
    sequences, keys = tf.shape(cache)[0], tf.shape(cache)[2]
    first = tf.minimum(tf.cast(index, tf.int32), keys)
    filled = tf.minimum(first + tf.shape(inputs)[1], keys)
    offset, lengths = (tf.fill([sequences], position) for position in (first, filled))
    return Visibility(make_mask, causal=True, offset=offset, window=window, lengths=lengths)


def into_cache(cache: tf.Tensor, index: Any, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """The keys, the values and the cache [B, 2, S, H, D], with new keys and values from position `index` on."""
    key, value = (keras.ops.slice_update(cache[:, i], (0, index, 0, 0), new) for i, new in enumerate((key, value)))
    return key, value, keras.ops.stack((key, value), axis=1)
