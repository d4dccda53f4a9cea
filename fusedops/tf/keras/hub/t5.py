"""T5."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras_hub.src.models.t5 import t5_layer_norm, t5_transformer_layer

from fusedops.tf.keras.dropout import add
from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.gated import activated_product
from fusedops.tf.keras.hub.layer import HubLayer
from fusedops.tf.keras.hub.norms import FusedRMSNorm
from fusedops.tf.keras.hub.residual import add_norm
from fusedops.tf.keras.layer import parameter


@saved
class T5LayerNorm(FusedRMSNorm, t5_layer_norm.T5LayerNorm):
    needs = ("weight", "epsilon")

    def _weight(self, x: tf.Tensor) -> Any:
        return parameter(self.weight, x)


@saved
class T5TransformerLayer(HubLayer, t5_transformer_layer.T5TransformerLayer):
    needs = (
        "is_decoder",
        "use_gated_activation",
        "self_attention",
        "self_attention_layer_norm",
        "self_attention_dropout",
        "input_projector",
        "output_projector",
        "layer_norm",
        "dropout_layer",
        "_compute_self_attention_mask",
    )

    def call(
        self,
        hidden_states: tf.Tensor,
        attention_mask: Any = None,
        position_bias: Any = None,
        encoder_hidden_states: Any = None,
        encoder_attention_mask: Any = None,
        use_causal_mask: bool = False,
        self_attention_cache: Any = None,
        self_attention_cache_update_index: Any = None,
        cross_attention_cache: Any = None,
        cross_attention_cache_update_index: Any = None,
        training: bool = False,
    ) -> Any:
        if use_causal_mask and position_bias is None:  # which has the mask in it
            attention_mask = self._compute_self_attention_mask(
                hidden_states, attention_mask, self_attention_cache, self_attention_cache_update_index
            )
        x, position_bias, self_cache = self.self_attention(
            self.self_attention_layer_norm(hidden_states),
            mask=attention_mask,
            position_bias=position_bias,
            cache=self_attention_cache,
            cache_update_index=self_attention_cache_update_index,
            training=training,
        )
        dropout, residual = self.self_attention_dropout, hidden_states
        if self.is_decoder:
            x, residual = add_norm(self.cross_attention_layer_norm, x, residual, dropout, training)
            x, _, cross_attention_cache = self.cross_attention(
                x,
                key_value_states=encoder_hidden_states,
                mask=encoder_attention_mask,
                cache=cross_attention_cache,
                cache_update_index=cross_attention_cache_update_index,
                training=training,
            )
            dropout = self.cross_attention_dropout

        x, residual = add_norm(self.layer_norm, x, residual, dropout, training)
        y = self.output_projector(self.dropout_layer(self._activated(x), training=training))
        y = add(y, residual, self.dropout_layer, training)
        if self_attention_cache is None:
            return y, position_bias
        return y, position_bias, self_cache, cross_attention_cache

    def _activated(self, x: tf.Tensor) -> tf.Tensor:
        if self.use_gated_activation:
            return activated_product(self.input_projector, self.gate_projector, x)
        return self.input_projector(x)
