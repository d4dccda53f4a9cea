"""Llama, and with it Llama 3."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras_hub.src.models.llama import llama_decoder, llama_rotary_embedding

from fusedops.tf.keras import activations
from fusedops.tf.keras.hub.decoder import CausalDecoder
from fusedops.tf.keras.hub.gated import gated_product
from fusedops.tf.keras.hub.residual import add_norm
from fusedops.tf.keras.hub.rotary import FusedRotation


@keras.saving.register_keras_serializable("fusedops.hub")
class LlamaRotaryEmbedding(FusedRotation, llama_rotary_embedding.LlamaRotaryEmbedding):
    pass


@keras.saving.register_keras_serializable("fusedops.hub")
class LlamaTransformerDecoder(CausalDecoder, llama_decoder.LlamaTransformerDecoder):
    needs = (
        *CausalDecoder.needs,
        "_self_attention_layernorm",
        "_self_attention_dropout",
        "_feedforward_layernorm",
        "_feedforward_gate_dense",
        "_feedforward_intermediate_dense",
        "_feedforward_output_dense",
        "activation",
    )

    def call(
        self,
        decoder_sequence: tf.Tensor,
        decoder_padding_mask: Any = None,
        decoder_attention_mask: Any = None,
        self_attention_cache: Any = None,
        self_attention_cache_update_index: Any = None,
        training: bool | None = None,
    ) -> Any:
        attended = self._self_attention_layer(
            hidden_states=self._self_attention_layernorm(decoder_sequence),
            attention_mask=self._compute_self_attention_mask(
                decoder_sequence,
                decoder_padding_mask,
                decoder_attention_mask,
                self_attention_cache,
                self_attention_cache_update_index,
            ),
            cache=self_attention_cache,
            cache_update_index=self_attention_cache_update_index,
        )
        if self_attention_cache is not None:
            attended, self_attention_cache = attended
        dropout = self._self_attention_dropout

        x, residual = add_norm(self._feedforward_layernorm, attended, decoder_sequence, dropout, training)
        y = self._feedforward_output_dense(self._gated(x)) + residual
        return y if self_attention_cache is None else (y, self_attention_cache)

    def _gated(self, x: tf.Tensor) -> tf.Tensor:
        gate, up = self._feedforward_gate_dense, self._feedforward_intermediate_dense
        name = activations.fused_name(self.activation)
        if name is None:
            y = up(x)
            return tf.cast(self.activation(tf.cast(gate(x), tf.float32)), y.dtype) * y
        return gated_product(gate, up, x, name)
