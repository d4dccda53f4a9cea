"""GPT-NeoX."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras_hub.src.models.gpt_neo_x import gpt_neo_x_attention

from fusedops.keras_layers.visibility import attend, can_attend
from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.layer import HubLayer


@saved
class GPTNeoXAttention(HubLayer, gpt_neo_x_attention.GPTNeoXAttention):
    needs = ("attn_head_size", "dropout", "_attn_dropout_layer", "_inv_norm_factor", "_compute_attention")
    head_attribute = "attn_head_size"

    def _compute_attention(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, attention_mask: Any = None, training: Any = None
    ) -> tf.Tensor:
        if not can_attend(query, key, value):
            return super()._compute_attention(query, key, value, attention_mask, training)
        dropout = {"dropout": self.dropout if training else 0.0, "dropout_layer": self._attn_dropout_layer}
        return attend(query, key, value, attention_mask, self._inv_norm_factor, **dropout)
