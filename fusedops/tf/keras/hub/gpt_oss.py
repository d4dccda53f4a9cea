"""GPT-OSS: attention with sinks, and experts with a gate of their own."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras_hub.src.models.gpt_oss import gpt_oss_attention, gpt_oss_decoder

from fusedops.keras_layers.layer import parameter
from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.attention import FusedAttention
from fusedops.tf.keras.hub.experts import FusedExperts
from fusedops.tf.keras.hub.layer import HubLayer
from fusedops.tf.keras.hub.mixture import rows_of


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


@saved
class GptOssExperts(FusedExperts, gpt_oss_decoder.GptOssExperts):
    needs = ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias", "alpha", "limit")

    def _weights(self) -> tuple[Any, ...]:
        return self.gate_up_proj, self.down_proj, self.gate_up_proj_bias, self.down_proj_bias

    def _gate(self) -> dict[str, Any]:
        return {"interleaved": True, "limit": self.limit, "alpha": self.alpha, "shift": 1.0}


@saved
class GptOssSparseMoeBlock(HubLayer, gpt_oss_decoder.GptOssSparseMoeBlock):
    needs = ("router", "experts", "top_k")
    arguments = 1

    def fused_call(self, given: Any) -> Any:
        if not isinstance(self.experts, FusedExperts):
            return super().call(given.hidden_states)
        x = rows_of(given.hidden_states)
        scores = self.router(x)
        y = self.experts.scored(x, scores, self.top_k)
        return keras.ops.reshape(y, keras.ops.shape(given.hidden_states)), scores
