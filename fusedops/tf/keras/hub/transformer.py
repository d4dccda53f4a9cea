"""keras_hub.layers.TransformerEncoder and TransformerDecoder, the layers of BERT, GPT-2 and similar models."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf
from keras_hub.src.layers.modeling import cached_multi_head_attention, transformer_decoder, transformer_encoder
from keras_hub.src.layers.modeling.transformer_layer_utils import merge_padding_and_attention_mask

from fusedops.keras_layers.attention import MultiHeadAttention
from fusedops.keras_layers.dropout import add
from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.causal import decoder_visibility
from fusedops.tf.keras.hub.layer import HubLayer
from fusedops.tf.keras.hub.residual import add_norm


@saved
class TransformerEncoder(HubLayer, transformer_encoder.TransformerEncoder):
    needs = (
        *("normalize_first", "_self_attention_layer", "_self_attention_layer_norm", "_self_attention_dropout"),
        *("_feedforward_layer_norm", "_feedforward_intermediate_dense", "_feedforward_output_dense"),
        "_feedforward_dropout",
    )
    arguments = 5

    def fused_call(self, given: Any) -> Any:
        inputs, training = given.inputs, given.training
        x = self._self_attention_layer_norm(inputs) if self.normalize_first else inputs
        attended = self._self_attention_layer(
            query=x,
            value=x,
            attention_mask=merge_padding_and_attention_mask(inputs, given.padding_mask, given.attention_mask),
            return_attention_scores=given.return_attention_scores,
            training=training,
        )
        if given.return_attention_scores:
            attended, scores = attended
        of_attention, of_feedforward = self._self_attention_dropout, self._feedforward_dropout

        if self.normalize_first:
            x, residual = add_norm(self._feedforward_layer_norm, attended, inputs, of_attention, training)
            y = add(self._feedforward(x), residual, of_feedforward, training)
        else:
            x, _ = add_norm(self._self_attention_layer_norm, attended, inputs, of_attention, training)
            y, _ = add_norm(self._feedforward_layer_norm, self._feedforward(x), x, of_feedforward, training)
        return (y, scores) if given.return_attention_scores else y

    def _feedforward(self, x: tf.Tensor) -> tf.Tensor:
        return self._feedforward_output_dense(self._feedforward_intermediate_dense(x))


@saved
class CachedMultiHeadAttention(HubLayer, MultiHeadAttention, cached_multi_head_attention.CachedMultiHeadAttention):
    """KerasHub's code projects and caches, then calls Keras's attention, which is ours."""

    def why_not(self, inputs: Any = None) -> str | None:
        return super().why_not(inputs) or MultiHeadAttention.why_not(self, inputs)


@saved
class TransformerDecoder(HubLayer, transformer_decoder.TransformerDecoder):
    needs = ("_self_attention_layer", "_compute_self_attention_mask")

    def _compute_self_attention_mask(
        self,
        decoder_sequence: tf.Tensor,
        decoder_padding_mask: Any,
        decoder_attention_mask: Any,
        use_causal_mask: bool,
        self_attention_cache: Any,
        self_attention_cache_update_index: Any,
    ) -> Any:
        masks = (decoder_sequence, decoder_padding_mask, decoder_attention_mask)
        cache = (self_attention_cache, self_attention_cache_update_index)
        make_mask = partial(super()._compute_self_attention_mask, *masks, use_causal_mask, *cache)
        if not use_causal_mask or type(self._self_attention_layer) is not CachedMultiHeadAttention:
            return make_mask()
        return decoder_visibility(make_mask, *masks, *cache)
