"""T5."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras_hub.src.models.t5 import t5_layer_norm, t5_transformer_layer

from fusedops.keras_layers.dropout import add
from fusedops.keras_layers.layer import parameter
from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.gated import activated_product
from fusedops.tf.keras.hub.layer import HubLayer
from fusedops.tf.keras.hub.norms import FusedRMSNorm
from fusedops.tf.keras.hub.residual import add_norm


@saved
class T5LayerNorm(FusedRMSNorm, t5_layer_norm.T5LayerNorm):
    needs = ("weight", "epsilon")

    def _weight(self, x: tf.Tensor) -> Any:
        return parameter(self.weight, x)


@saved
class T5TransformerLayer(HubLayer, t5_transformer_layer.T5TransformerLayer):
    needs = (
        *("is_decoder", "use_gated_activation", "self_attention", "self_attention_layer_norm"),
        *("self_attention_dropout", "input_projector", "output_projector", "layer_norm", "dropout_layer"),
        "_compute_self_attention_mask",
    )
    arguments = 11

    def fused_call(self, given: Any) -> Any:
        mask, bias, training = given.attention_mask, given.position_bias, given.training
        cache, index = given.self_attention_cache, given.self_attention_cache_update_index
        cross_cache = given.cross_attention_cache
        if given.use_causal_mask and bias is None:  # a bias includes the mask
            mask = self._compute_self_attention_mask(given.hidden_states, mask, cache, index)
        x, position_bias, self_cache = self.self_attention(
            self.self_attention_layer_norm(given.hidden_states),
            mask=mask,
            position_bias=bias,
            cache=cache,
            cache_update_index=index,
            training=training,
        )
        dropout, residual = self.self_attention_dropout, given.hidden_states
        if self.is_decoder:
            x, residual = add_norm(self.cross_attention_layer_norm, x, residual, dropout, training)
            x, _, cross_cache = self.cross_attention(
                x,
                key_value_states=given.encoder_hidden_states,
                mask=given.encoder_attention_mask,
                cache=cross_cache,
                cache_update_index=given.cross_attention_cache_update_index,
                training=training,
            )
            dropout = self.cross_attention_dropout

        x, residual = add_norm(self.layer_norm, x, residual, dropout, training)
        y = self.output_projector(self.dropout_layer(self._activated(x), training=training))
        y = add(y, residual, self.dropout_layer, training)
        return (y, position_bias) if cache is None else (y, position_bias, self_cache, cross_cache)

    def _activated(self, x: tf.Tensor) -> tf.Tensor:
        if self.use_gated_activation:
            return activated_product(self.input_projector, self.gate_projector, x)
        return self.input_projector(x)
