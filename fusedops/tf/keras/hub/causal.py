"""Causal attention, without a mask of all pairs of positions.

A decoder of KerasHub makes a mask [B, T, S] of padding and causality. Ours hands on what is kept as `Kept` has it, for
an attention of ours: causality as such, the padding alone, and how much of a cache is filled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf
from keras_hub.src.layers.modeling.transformer_layer_utils import merge_padding_and_attention_mask

from fusedops.tf.keras.kept import Kept, of_pairs


def kept_of_decoder(
    everything: Callable[[], tf.Tensor],
    inputs: tf.Tensor,
    padding_mask: Any,
    attention_mask: Any = None,
    cache: Any = None,
    cache_update_index: Any = None,
    window: int | None = None,
) -> Kept:
    """What a decoder keeps, whose arguments these are. `everything` makes its own mask."""
    index = 0 if cache_update_index is None else cache_update_index
    length = inputs.shape[1]
    from_start = isinstance(index, int) and index == 0
    if cache is None or (from_start and length is not None and length == cache.shape[2]):
        if attention_mask is not None:
            return replace(of_pairs(everything()), causal=True)
        padding = merge_padding_and_attention_mask(inputs, padding_mask, None)  # [B, 1, S]
        keys = None if padding is None else tf.cast(padding[:, 0], tf.bool)
        return Kept(everything, causal=True, window=window, keys=keys)
    unmasked = merge_padding_and_attention_mask(inputs, padding_mask, attention_mask) is None
    if length == 1 and unmasked and window is None:
        shape = tf.shape(cache)
        filled = tf.minimum(tf.cast(index, tf.int32) + 1, shape[2])
        return Kept(everything, lengths=tf.fill(shape[:1], filled))
    return of_pairs(everything())
