"""Qwen 3.5, and with it its mixture of experts."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras_hub.src.models.qwen3_5 import qwen3_5_decoder, qwen3_5_layers

from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.gated_decoder import feed_forward
from fusedops.tf.keras.hub.layer import HubLayer
from fusedops.tf.keras.hub.norms import FusedRMSNorm


@saved
class Qwen3_5LayerNorm(FusedRMSNorm, qwen3_5_layers.Qwen3_5LayerNorm):
    weight_offset = 1.0


@saved
class Qwen3_5TransformerDecoder(HubLayer, qwen3_5_decoder.Qwen3_5TransformerDecoder):
    needs = (
        "layer_type",
        "_input_layernorm",
        "_self_attention_dropout",
        "_post_attention_layernorm",
        "_feedforward_gate_dense",
        "_feedforward_intermediate_dense",
        "_feedforward_output_dense",
        "activation",
        "_compute_self_attention_mask",
    )

    def call(
        self,
        decoder_sequence: tf.Tensor,
        decoder_padding_mask: Any = None,
        decoder_attention_mask: Any = None,
        self_attention_cache: Any = None,
        self_attention_cache_update_index: Any = None,
        position_ids: Any = None,
        training: bool | None = None,
    ) -> Any:
        x = self._input_layernorm(decoder_sequence)
        of_cache = {"cache": self_attention_cache, "cache_update_index": self_attention_cache_update_index}
        is_linear = self.layer_type == "linear_attention"
        if is_linear:
            mixed = self._linear_attn(x, attention_mask=decoder_padding_mask, training=training, **of_cache)
        else:
            mask = self._compute_self_attention_mask(
                decoder_sequence,
                decoder_padding_mask,
                decoder_attention_mask,
                self_attention_cache,
                self_attention_cache_update_index,
            )
            mixed = self._self_attention_layer(
                hidden_states=x, attention_mask=mask, position_ids=position_ids, **of_cache
            )
        if self_attention_cache is not None:
            mixed, self_attention_cache = mixed
        y = feed_forward(self, self._post_attention_layernorm, mixed, decoder_sequence, training)
        if self_attention_cache is None:
            return y
        return (y, *self_attention_cache) if is_linear else (y, self_attention_cache)
