"""T5."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras_hub.src.models.t5 import t5_layer_norm, t5_multi_head_attention, t5_transformer_layer

from fusedops.keras_layers.dropout import add
from fusedops.keras_layers.layer import parameter
from fusedops.keras_layers.visibility import attend, can_attend
from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.causal import into_cache
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
class T5MultiHeadAttention(HubLayer, t5_multi_head_attention.T5MultiHeadAttention):
    needs = (
        *("num_heads", "key_value_dim", "inner_dim", "query_projector", "key_projector", "value_projector"),
        *("output_projector", "dropout_layer", "use_relative_attention_bias", "compute_bias"),
    )
    head_attribute = "key_value_dim"
    arguments = 7

    def fused_call(self, given: Any) -> Any:
        x, cache, index, bias = given.hidden_states, given.cache, given.cache_update_index, given.position_bias
        others = x if given.key_value_states is None else given.key_value_states
        if cache is None and index is not None:
            return super().call(**vars(given))  # raises its error
        query = self._heads(self.query_projector(x))
        if not can_attend(query):
            return super().call(**vars(given))
        if cache is not None and index is None:
            key, value = cache[:, 0], cache[:, 1]
        else:
            key, value = (self._heads(dense(others)) for dense in (self.key_projector, self.value_projector))
        if cache is not None and index is not None:
            key, value, cache = into_cache(cache, index, key, value)
        if bias is None:
            bias = self._bias(query, key, given.mask, index)
        dropout = {"dropout": self.dropout_layer.rate if given.training else 0.0, "dropout_layer": self.dropout_layer}
        y = attend(query, key, value, None, 1.0, bias=tf.cast(bias, query.dtype), **dropout)
        return self.output_projector(keras.ops.reshape(y, (*keras.ops.shape(y)[:2], self.inner_dim))), bias, cache

    def _bias(self, query: tf.Tensor, key: tf.Tensor, mask: Any, index: Any) -> tf.Tensor:
        """The bias of positions and the mask, which the following layers get, too."""
        queries, keys = keras.ops.shape(query)[1], keras.ops.shape(key)[1]
        if self.use_relative_attention_bias:
            bias = self.compute_bias(queries, keys, query_start_index=0 if index is None else index)
        else:
            bias = keras.ops.zeros((1, self.num_heads, queries, keys), self.compute_dtype)
        if mask is None:
            return bias
        return bias + (1.0 - keras.ops.cast(mask[:, None], bias.dtype)) * -1e9

    def _heads(self, x: tf.Tensor) -> tf.Tensor:
        """[B, T, H · D] as [B, T, H, D]."""
        return keras.ops.reshape(x, (*keras.ops.shape(x)[:2], self.num_heads, self.key_value_dim))


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
