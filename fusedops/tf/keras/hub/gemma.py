"""Gemma and Gemma 2."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf
from keras import ops
from keras_hub.src.models.gemma import gemma_attention, gemma_decoder_block, rms_normalization

import fusedops.tf as fo
from fusedops.tf.keras.hub import causal
from fusedops.tf.keras.hub.layer import HubLayer
from fusedops.tf.keras.hub.norms import FusedRMSNorm
from fusedops.tf.keras.hub.residual import add_norm


@keras.saving.register_keras_serializable("fusedops.hub.gemma")
class RMSNormalization(FusedRMSNorm, rms_normalization.RMSNormalization):
    weight_offset = 1.0


@keras.saving.register_keras_serializable("fusedops.hub.gemma")
class CachedGemmaAttention(HubLayer, gemma_attention.CachedGemmaAttention):
    needs = (
        "query_dense",
        "key_dense",
        "value_dense",
        "output_dense",
        "rope_layer",
        "dropout_layer",
        "dropout",
        "num_key_value_heads",
        "num_query_heads",
        "head_dim",
        "hidden_dim",
        "query_head_dim_normalize",
        "logit_soft_cap",
        "use_sliding_window_attention",
        "_mask_sliding_window",
        "_compute_attention",
    )

    def call(
        self,
        x: tf.Tensor,
        attention_mask: Any = None,
        cache: Any = None,
        cache_update_index: Any = 0,
        training: bool = False,
    ) -> Any:
        if not causal.is_beside_causality(attention_mask):
            return super().call(
                x,
                attention_mask=attention_mask,
                cache=cache,
                cache_update_index=cache_update_index,
                training=training,
            )
        # Gemma's own order of features after the rotation is left out: it is the same for queries and keys, whose
        # products do not depend on it. So is setting to zero what attends to nothing: its probabilities are zero.
        query, key = (self.rope_layer(dense(x)) for dense in (self.query_dense, self.key_dense))
        attended = self._compute_attention(query, key, self.value_dense(x), attention_mask, training=training)
        return self.output_dense(attended)

    def _compute_attention(
        self,
        q: tf.Tensor,
        k: tf.Tensor,
        v: tf.Tensor,
        attention_mask: Any,
        training: bool = False,
        cache_update_index: Any = 0,
    ) -> tf.Tensor:
        if self.use_sliding_window_attention and attention_mask is not None:
            attention_mask = self._mask_sliding_window(attention_mask, cache_update_index=cache_update_index)
        batch, length, heads, dim = ops.shape(q)
        groups = heads // self.num_key_value_heads
        scores = ops.einsum("btkgh,bskh->bkgts", ops.reshape(q, (batch, length, -1, groups, dim)), k)
        scale = 1 / math.sqrt(self.head_dim if self.query_head_dim_normalize else self.hidden_dim // heads)
        if self.logit_soft_cap is not None:
            scores, scale = ops.tanh(scores * (scale / self.logit_soft_cap)), self.logit_soft_cap
        shares = causal.probabilities(scores, scale, attention_mask)
        if self.dropout:
            shares = self.dropout_layer(shares, training=training)
        return ops.reshape(ops.einsum("bkgts,bskh->btkgh", shares, v), (batch, length, heads, dim))


@keras.saving.register_keras_serializable("fusedops.hub.gemma")
class GemmaDecoderBlock(HubLayer, gemma_decoder_block.GemmaDecoderBlock):
    needs = (
        "pre_attention_norm",
        "attention",
        "use_post_attention_norm",
        "dropout",
        "pre_ffw_norm",
        "gating_ffw",
        "gating_ffw_2",
        "ffw_linear",
        "use_post_ffw_norm",
        "_compute_attention_mask",
    )

    def call(self, x: tf.Tensor, padding_mask: Any = None, cache: Any = None, cache_update_index: Any = 0) -> Any:
        normalized = self.pre_attention_norm(x)
        mask = self._compute_attention_mask(normalized, padding_mask, cache, cache_update_index)
        if cache is None:
            attended = self.attention(normalized, attention_mask=mask)
        else:
            attended, cache = self.attention(
                normalized, attention_mask=mask, cache=cache, cache_update_index=cache_update_index
            )
        if self.use_post_attention_norm:
            attended = self.post_attention_norm(attended)
        if self.dropout:
            attended = self.attention_dropout(attended)

        normalized, residual = add_norm(self.pre_ffw_norm, attended, x)
        gated = fo.geglu(self.gating_ffw(normalized), self.gating_ffw_2(normalized), approximate="tanh")
        y = self.ffw_linear(gated)
        if self.use_post_ffw_norm:
            y = self.post_ffw_norm(y)
        y = y + residual
        return y if cache is None else (y, cache)

    def _compute_attention_mask(
        self, x: tf.Tensor, padding_mask: Any, cache: Any, cache_update_index: Any
    ) -> tf.Tensor:
        attention = self.attention
        windowed = attention.use_sliding_window_attention  # a window is cut out of a mask of all pairs
        if cache is None and not windowed and type(attention) is CachedGemmaAttention:
            return causal.beside_causality(x, padding_mask)
        return super()._compute_attention_mask(x, padding_mask, cache, cache_update_index)
