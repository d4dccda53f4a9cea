"""Gemma and Gemma 2."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import tensorflow as tf
from keras_hub.src.models.gemma import gemma_attention, gemma_decoder_block, rms_normalization

from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.causal import kept_of_decoder
from fusedops.tf.keras.hub.gated import gated_product
from fusedops.tf.keras.hub.layer import HubLayer
from fusedops.tf.keras.hub.norms import FusedRMSNorm
from fusedops.tf.keras.hub.residual import add_norm
from fusedops.tf.keras.kept import Kept, attend, fit, keras_mask, too_many


@saved
class RMSNormalization(FusedRMSNorm, rms_normalization.RMSNormalization):
    weight_offset = 1.0


@saved
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
        "sliding_window_size",
        "_mask_sliding_window",
        "_compute_attention",
    )

    def why_not(self, inputs: Any = None) -> str | None:
        return super().why_not(inputs) or too_many(head_dim=self.head_dim)

    def call(
        self,
        x: tf.Tensor,
        attention_mask: Any = None,
        cache: Any = None,
        cache_update_index: Any = 0,
        training: bool = False,
    ) -> Any:
        if not isinstance(attention_mask, Kept):
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
        if not fit(q, k, v):
            return super()._compute_attention(
                q, k, v, keras_mask(attention_mask), training=training, cache_update_index=cache_update_index
            )
        if self.use_sliding_window_attention and attention_mask is not None:
            if isinstance(attention_mask, Kept):
                attention_mask = replace(attention_mask, window=self.sliding_window_size)
            else:
                attention_mask = self._mask_sliding_window(attention_mask, cache_update_index=cache_update_index)
        scale = 1 / math.sqrt(self.head_dim if self.query_head_dim_normalize else self.hidden_dim // q.shape[2])
        dropout = {"dropout": self.dropout if training else 0.0, "dropout_layer": self.dropout_layer}
        return attend(q, k, v, attention_mask, scale, softcap=self.logit_soft_cap or 0.0, **dropout)


class GatedBlock(HubLayer):
    """A decoder block of Gemma's families, which make different masks."""

    needs: ClassVar[tuple[str, ...]] = (
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

    def _block(self, x: tf.Tensor, mask: Callable[[tf.Tensor], Any], cache: Any, **of_cache: Any) -> Any:
        """What the block computes. `mask` makes its mask of the normalized x; `of_cache` belongs to a cache."""
        normalized = self.pre_attention_norm(x)
        if cache is None:
            attended = self.attention(normalized, attention_mask=mask(normalized))
        else:
            attended, cache = self.attention(normalized, attention_mask=mask(normalized), cache=cache, **of_cache)
        if self.use_post_attention_norm:
            attended = self.post_attention_norm(attended)
        if self.dropout:
            attended = self.attention_dropout(attended)

        normalized, residual = add_norm(self.pre_ffw_norm, attended, x)
        gated = gated_product(self.gating_ffw, self.gating_ffw_2, normalized, "gelu_tanh")
        y = self.ffw_linear(gated)
        if self.use_post_ffw_norm:
            y = self.post_ffw_norm(y)
        y = y + residual
        return y if cache is None else (y, cache)


@saved
class GemmaDecoderBlock(GatedBlock, gemma_decoder_block.GemmaDecoderBlock):
    def call(self, x: tf.Tensor, padding_mask: Any = None, cache: Any = None, cache_update_index: Any = 0) -> Any:
        def mask(normalized: tf.Tensor) -> Any:
            return self._compute_attention_mask(normalized, padding_mask, cache, cache_update_index)

        return self._block(x, mask, cache, cache_update_index=cache_update_index)

    def _compute_attention_mask(self, x: tf.Tensor, padding_mask: Any, cache: Any, cache_update_index: Any) -> Any:
        everything = partial(super()._compute_attention_mask, x, padding_mask, cache, cache_update_index)
        if cache is not None or type(self.attention) is not CachedGemmaAttention:
            return everything()
        return kept_of_decoder(everything, x, padding_mask)
