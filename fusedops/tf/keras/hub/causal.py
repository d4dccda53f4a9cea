"""Causal attention, without a mask of all pairs of positions.

A decoder of KerasHub makes a mask [B, T, S] of padding and causality. Ours passes a `Visibility` to an attention of
ours: causality as a flag, the padding, and the filled length of a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf
from keras_hub.src.layers.modeling.transformer_layer_utils import merge_padding_and_attention_mask

from fusedops.tf.keras.visibility import Visibility, from_mask


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
    if cache is None or (from_start and length is not None and length == cache.shape[2]):
        if attention_mask is not None:
            return replace(from_mask(make_mask()), causal=True)
        padding = merge_padding_and_attention_mask(inputs, padding_mask, None)  # [B, 1, S]
        keys = None if padding is None else tf.cast(padding[:, 0], tf.bool)
        return Visibility(make_mask, causal=True, window=window, keys=keys)
    unmasked = merge_padding_and_attention_mask(inputs, padding_mask, attention_mask) is None
    if length == 1 and unmasked and window is None:
        shape = tf.shape(cache)
        filled = tf.minimum(tf.cast(index, tf.int32) + 1, shape[2])
        return Visibility(make_mask, lengths=tf.fill(shape[:1], filled))
    return from_mask(make_mask())
