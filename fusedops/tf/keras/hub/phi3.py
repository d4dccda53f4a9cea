"""Phi-3's decoder."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras_hub.src.models.phi3 import phi3_decoder

from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.gated import gated
from fusedops.tf.keras.hub.layer import HubLayer
from fusedops.tf.keras.hub.residual import add_norm


@saved
class Phi3Decoder(HubLayer, phi3_decoder.Phi3Decoder):
    needs = (
        "pre_attention_layernorm",
        "attention",
        "attention_dropout",
        "post_attention_layernorm",
        "feedforward_gate_dense",
        "feedforward_intermediate_dense",
        "feedforward_output_dense",
        "feedforward_dropout",
        "activation",
        "_compute_self_attention_mask",
    )

    def call(
        self,
        decoder_sequence: tf.Tensor,
        decoder_padding_mask: Any = None,
        decoder_attention_mask: Any = None,
        attention_cache: Any = None,
        attention_cache_update_index: Any = None,
    ) -> Any:
        attended = self.attention(
            hidden_states=self.pre_attention_layernorm(decoder_sequence),
            attention_mask=self._compute_self_attention_mask(
                decoder_sequence,
                decoder_padding_mask,
                decoder_attention_mask,
                attention_cache,
                attention_cache_update_index,
            ),
            cache=attention_cache,
            cache_update_index=attention_cache_update_index,
        )
        if attention_cache is not None:
            attended, attention_cache = attended
        attended = self.attention_dropout(attended)

        x, residual = add_norm(self.post_attention_layernorm, attended, decoder_sequence)
        gate, up = self.feedforward_gate_dense, self.feedforward_intermediate_dense
        y = self.feedforward_output_dense(gated(gate, up, x, self.activation))
        y = self.feedforward_dropout(y) + residual
        return y if attention_cache is None else (y, attention_cache)
