"""Phi-3's decoder."""

from __future__ import annotations

from typing import Any

from keras_hub.src.models.phi3 import phi3_decoder

from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.decoder import CausalDecoder
from fusedops.tf.keras.hub.gated import gated
from fusedops.tf.keras.hub.residual import add_norm


@saved
class Phi3Decoder(CausalDecoder, phi3_decoder.Phi3Decoder):
    needs = (
        *CausalDecoder.needs,
        *("pre_attention_layernorm", "attention", "attention_dropout", "post_attention_layernorm"),
        *("feedforward_gate_dense", "feedforward_intermediate_dense", "feedforward_output_dense"),
        *("feedforward_dropout", "activation"),
    )
    arguments = 5

    def fused_call(self, given: Any) -> Any:
        cache, index = given.attention_cache, given.attention_cache_update_index
        masks = (given.decoder_padding_mask, given.decoder_attention_mask)
        attended = self.attention(
            hidden_states=self.pre_attention_layernorm(given.decoder_sequence),
            attention_mask=self._compute_self_attention_mask(given.decoder_sequence, *masks, cache, index),
            cache=cache,
            cache_update_index=index,
        )
        if cache is not None:
            attended, cache = attended
        attended = self.attention_dropout(attended)

        x, residual = add_norm(self.post_attention_layernorm, attended, given.decoder_sequence)
        gate, up = self.feedforward_gate_dense, self.feedforward_intermediate_dense
        y = self.feedforward_output_dense(gated(gate, up, x, self.activation))
        y = self.feedforward_dropout(y) + residual
        return y if cache is None else (y, cache)
