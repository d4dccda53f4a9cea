"""Gemma and Gemma 2."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import tensorflow as tf
from keras_hub.src.models.gemma import gemma_attention, gemma_decoder_block, rms_normalization

from fusedops.keras_layers.visibility import Visibility, attend, can_attend, keras_mask
from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.attention import in_window
from fusedops.tf.keras.hub.causal import decoder_visibility, into_cache
from fusedops.tf.keras.hub.gated import gated_product
from fusedops.tf.keras.hub.layer import HubLayer
from fusedops.tf.keras.hub.norms import FusedRMSNorm
from fusedops.tf.keras.hub.residual import add_norm


@saved
class RMSNormalization(FusedRMSNorm, rms_normalization.RMSNormalization):
    weight_offset = 1.0


class GroupedAttention(HubLayer):
    """The attention of the Gemma families, whose own code projects, rotates and caches."""

    needs: ClassVar[tuple[str, ...]] = ("dropout_layer", "dropout", "head_dim", "logit_soft_cap", "_compute_attention")
    head_attribute = "head_dim"

    def _compute_attention(
        self,
        q: tf.Tensor,
        k: tf.Tensor,
        v: tf.Tensor,
        attention_mask: Any,
        training: bool = False,
        cache_update_index: Any = 0,
    ) -> tf.Tensor:
        if not can_attend(q, k, v):
            return super()._compute_attention(
                q, k, v, keras_mask(attention_mask), training=training, cache_update_index=cache_update_index
            )
        mask = self._in_window(attention_mask, cache_update_index)
        dropout = {"dropout": self.dropout if training else 0.0, "dropout_layer": self.dropout_layer}
        return attend(q, k, v, mask, self._scale(), softcap=self.logit_soft_cap or 0.0, **dropout)

    def _in_window(self, mask: Any, cache_update_index: Any) -> Any:
        """The mask within the layer's own window."""
        return mask

    def _scale(self) -> float:
        return 1.0


class WindowedAttention(GroupedAttention):
    """With a scale and a window in some layers, as in Gemma 2 and 3."""

    needs: ClassVar[tuple[str, ...]] = (
        *(*GroupedAttention.needs, "num_query_heads", "hidden_dim", "query_head_dim_normalize"),
        *("use_sliding_window_attention", "sliding_window_size", "_mask_sliding_window"),
    )

    def _in_window(self, mask: Any, cache_update_index: Any) -> Any:
        size = self.sliding_window_size if self.use_sliding_window_attention and mask is not None else None
        return in_window(
            mask, size, lambda mask: self._mask_sliding_window(mask, cache_update_index=cache_update_index)
        )

    def _scale(self) -> float:
        features = self.head_dim if self.query_head_dim_normalize else self.hidden_dim // self.num_query_heads
        return 1 / math.sqrt(features)


@saved
class CachedGemmaAttention(WindowedAttention, gemma_attention.CachedGemmaAttention):
    needs = (
        *WindowedAttention.needs,
        *("query_dense", "key_dense", "value_dense", "output_dense", "rope_layer", "_apply_rope"),
    )
    arguments = 5

    def fused_call(self, given: Any) -> Any:
        x, mask, cache, index = given.x, given.attention_mask, given.cache, given.cache_update_index
        if not isinstance(mask, Visibility):
            return super().call(**vars(given))
        # Gemma's own order of features after the rotation is the same for queries and keys, so that their products do
        # not need it; a cache has it. Queries that see no key are not zeroed: their probabilities are zero.
        rotated = self.rope_layer if cache is None else self._apply_rope
        query, key = (rotated(dense(x), start_index=index) for dense in (self.query_dense, self.key_dense))
        value = self.value_dense(x)
        if cache is not None:
            key, value, cache = into_cache(cache, index, key, value)
        of_call = {"training": given.training, "cache_update_index": index}
        y = self.output_dense(self._compute_attention(query, key, value, mask, **of_call))
        return y if cache is None else (y, cache)


class GatedBlock(HubLayer):
    """A decoder block of the Gemma families, which differ in their masks."""

    needs: ClassVar[tuple[str, ...]] = (
        *("pre_attention_norm", "attention", "use_post_attention_norm", "dropout", "pre_ffw_norm", "gating_ffw"),
        *("gating_ffw_2", "ffw_linear", "use_post_ffw_norm", "_compute_attention_mask"),
    )

    # The arguments of `call` that `_compute_attention_mask` takes, in order, and those for a cache.
    of_mask: ClassVar[tuple[str, ...]] = ("padding_mask", "cache", "cache_update_index")
    of_cache: ClassVar[tuple[str, ...]] = ("cache_update_index",)

    def fused_call(self, given: Any) -> Any:
        normalized, cache = self.pre_attention_norm(given.x), given.cache
        mask = self._compute_attention_mask(normalized, *(getattr(given, name) for name in self.of_mask))
        if cache is None:
            attended = self.attention(normalized, attention_mask=mask)
        else:
            of_cache = {name: getattr(given, name) for name in self.of_cache}
            attended, cache = self.attention(normalized, attention_mask=mask, cache=cache, **of_cache)
        if self.use_post_attention_norm:
            attended = self.post_attention_norm(attended)
        if self.dropout:
            attended = self.attention_dropout(attended)

        normalized, residual = add_norm(self.pre_ffw_norm, attended, given.x)
        gated = gated_product(self.gating_ffw, self.gating_ffw_2, normalized, "gelu_tanh")
        y = self.ffw_linear(gated)
        if self.use_post_ffw_norm:
            y = self.post_ffw_norm(y)
        y = y + residual
        return y if cache is None else (y, cache)


@saved
class GemmaDecoderBlock(GatedBlock, gemma_decoder_block.GemmaDecoderBlock):
    arguments = 4

    def _compute_attention_mask(self, x: tf.Tensor, padding_mask: Any, cache: Any, cache_update_index: Any) -> Any:
        make_mask = partial(super()._compute_attention_mask, x, padding_mask, cache, cache_update_index)
        if type(self.attention) is not CachedGemmaAttention:
            return make_mask()
        return decoder_visibility(make_mask, x, padding_mask, None, cache, cache_update_index)
