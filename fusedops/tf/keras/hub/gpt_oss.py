"""GPT-OSS: attention with sinks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras_hub.src.models.gpt_oss import gpt_oss_attention

from fusedops.keras_layers.layer import parameter
from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.attention import without_repeats
from fusedops.tf.keras.hub.layer import HubLayer
from fusedops.tf.keras.visibility import attend, can_attend, unsupported_heads


@saved
class GptOssAttention(HubLayer, gpt_oss_attention.GptOssAttention):
    needs = ("_head_dim", "_inv_norm_factor", "sinks", "sliding_window", "_compute_attention")

    num_key_value_groups = without_repeats("num_key_value_groups")

    def why_not(self, inputs: Any = None) -> str | None:
        return super().why_not(inputs) or unsupported_heads(head_dim=self._head_dim)

    def _compute_attention(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, attention_mask: Any = None, start_index: Any = 0
    ) -> tf.Tensor:
        if not can_attend(query, key, value):
            key, value = (tf.repeat(x, query.shape[2] // key.shape[2], 2) for x in (key, value))
            return super()._compute_attention(query, key, value, attention_mask, start_index)
        mask = attention_mask
        if self.sliding_window:
            first = tf.range(tf.shape(query)[1]) + start_index - self.sliding_window
            in_window = (tf.range(tf.shape(key)[1]) >= first[:, tf.newaxis])[tf.newaxis]
            mask = in_window if mask is None else tf.logical_and(tf.cast(mask, tf.bool), in_window)
        return attend(query, key, value, mask, self._inv_norm_factor, sinks=parameter(self.sinks, query))
