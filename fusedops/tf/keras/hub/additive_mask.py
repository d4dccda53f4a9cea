"""Attention with a mask of numbers, under one name for each kind of block in T5Gemma and T5Gemma 2."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf

from fusedops.keras_layers.visibility import attend, can_attend, from_mask
from fusedops.tf.keras.hub import made
from fusedops.tf.keras.hub.attention import without_repeats
from fusedops.tf.keras.hub.layer import HubLayer

_MASKED = -1e4  # the mask of a key that is masked is lower


class AdditiveMaskAttention(HubLayer):
    """KerasHub's code projects, rotates and caches."""

    needs: ClassVar[tuple[str, ...]] = (
        *("head_dim", "scaling", "logit_soft_cap", "dropout_layer", "num_key_value_groups", "_compute_attention"),
    )
    head_attribute = "head_dim"

    num_key_value_groups = without_repeats("num_key_value_groups")

    def _compute_attention(
        self,
        query_states: tf.Tensor,
        key_states: tf.Tensor,
        value_states: tf.Tensor,
        attention_mask: Any,
        training: Any,
    ) -> tf.Tensor:
        q, k, v = query_states, key_states, value_states
        if not can_attend(q, k, v):
            k, v = (tf.repeat(x, q.shape[2] // k.shape[2], 2) for x in (k, v))
            return super()._compute_attention(q, k, v, attention_mask, training)
        layer, cap = self.dropout_layer, self.logit_soft_cap or 0.0
        dropout = {"dropout": layer.rate if training else 0.0, "dropout_layer": layer}
        mask = None if attention_mask is None else from_mask(tf.greater(attention_mask, _MASKED))
        return attend(q, k, v, mask, self.scaling, softcap=cap, average_if_masked=True, **dropout)


__getattr__ = made.counterparts("additive_mask", AdditiveMaskAttention)
