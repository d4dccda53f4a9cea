"""Causal attention, without a mask of all pairs of positions.

A decoder of KerasHub makes a mask [B, T, S] of padding and causality, and its attention applies it to scores
[B, H, T, S]. Ours hands on what the padding keeps alone, with a dimension more, [B, 1, 1 or T, S]; the fourth dimension
tells our attention that causality is still to be applied, which the kernel does without a mask and without reading
what it masks.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras_hub.src.layers.modeling.transformer_layer_utils import merge_padding_and_attention_mask

import fusedops.tf as fo


def beside_causality(inputs: tf.Tensor, padding_mask: Any, attention_mask: Any = None) -> tf.Tensor:
    """The masks combined, bool, [B, 1, 1 or T, S]; without a mask, one element that keeps everything."""
    kept = merge_padding_and_attention_mask(inputs, padding_mask, attention_mask)
    return tf.ones([1, 1, 1, 1], tf.bool) if kept is None else tf.cast(kept, tf.bool)[:, None]


def is_beside_causality(mask: Any) -> bool:
    return mask is not None and len(mask.shape) == 4


def probabilities(scores: tf.Tensor, scale: float, mask: Any) -> tf.Tensor:
    """softmax(scale · scores) with a mask, in one pass, in the dtype of the scores.

    Args:
        scores: [B, ..., T, S].
        mask: None, KerasHub's [B, T, S], or what `beside_causality` made.
    """
    if mask is None:
        return fo.softmax(scores, scale=scale)
    causal = is_beside_causality(mask)
    kept = tf.cast(mask, tf.bool)
    while len(kept.shape) < len(scores.shape):
        kept = tf.expand_dims(kept, 1)
    return fo.softmax(scores, scale=scale, mask=kept, causal=causal)
