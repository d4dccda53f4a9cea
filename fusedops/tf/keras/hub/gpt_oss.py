"""GPT-OSS: attention with sinks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras_hub.src.models.gpt_oss import gpt_oss_attention

from fusedops.keras_layers.layer import parameter
from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.attention import FusedAttention


@saved
class GptOssAttention(FusedAttention, gpt_oss_attention.GptOssAttention):
    needs = (*FusedAttention.needs, "sinks", "sliding_window")

    def _window(self) -> int | None:
        return self.sliding_window + 1 if self.sliding_window else None

    def _mask_in_window(self, query: tf.Tensor, key: tf.Tensor, mask: Any, start_index: Any) -> tf.Tensor:
        first = tf.range(tf.shape(query)[1]) + start_index - self.sliding_window
        in_window = (tf.range(tf.shape(key)[1]) >= first[:, tf.newaxis])[tf.newaxis]
        return in_window if mask is None else tf.logical_and(tf.cast(mask, tf.bool), in_window)

    def _sinks(self, query: tf.Tensor) -> tf.Tensor:
        return parameter(self.sinks, query)
