"""SmolLM3, and with it SmolLM."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras_hub.src.models.smollm3 import smollm3_layers

import fusedops.tf as fo
from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.attention import FusedAttention
from fusedops.tf.keras.hub.causal import into_cache
from fusedops.tf.keras.hub.layer import HubLayer
from fusedops.tf.keras.hub.mlp import GatedMLP


@saved
class SmolLM3MLP(GatedMLP, smollm3_layers.SmolLM3MLP):
    pass


@saved
class SmolLM3RotaryEmbedding(HubLayer, smollm3_layers.SmolLM3RotaryEmbedding):
    """KerasHub's passes cosines and sines to the attention. Ours rotates queries and keys for an attention of ours."""

    needs = ("inv_freq", "attention_scaling")

    def why_not(self, inputs: Any = None) -> str | None:
        return self._lacks()  # it has all that it needs before it is built

    def rotated(self, x: tf.Tensor, start_index: Any) -> tf.Tensor:
        """[B, T, H, D], rotated. The angles are computed in float32, and their functions rounded to x's dtype."""
        positions = tf.range(tf.shape(x)[1], dtype=tf.float32) + tf.cast(start_index, tf.float32)
        angles = positions[:, tf.newaxis] * tf.cast(self.inv_freq, tf.float32)
        cos, sin = (tf.cast(table * self.attention_scaling, x.dtype) for table in (tf.cos(angles), tf.sin(angles)))
        return fo.rope(x, cos, sin)


@saved
class SmolLM3Attention(FusedAttention, smollm3_layers.SmolLM3Attention):
    needs = (*FusedAttention.needs, "q_proj", "k_proj", "v_proj", "o_proj", "rotary_embedding", "use_rope", "head_dim")

    def _features(self) -> int:
        return int(self.head_dim)

    def call(self, hidden_states: tf.Tensor, training: bool = False, attention_mask: Any = None, **kwargs: Any) -> Any:
        cache, index = (kwargs.get(f"self_attention_cache{suffix}") for suffix in ("", "_update_index"))
        rotary = self.rotary_embedding
        if type(rotary) is not SmolLM3RotaryEmbedding or (cache is None) != (index is None):
            return super().call(hidden_states, training=training, attention_mask=attention_mask, **kwargs)
        query, key, value = (self._heads(dense(hidden_states)) for dense in (self.q_proj, self.k_proj, self.v_proj))
        if self.use_rope:
            query, key = (rotary.rotated(x, 0 if index is None else index) for x in (query, key))
        if cache is not None:
            key, value, cache = into_cache(cache, index, key, value)
        y = self.o_proj(self._compute_attention(query, key, value, attention_mask, cache_update_index=index))
        return y if cache is None else (y, cache)

    def _heads(self, x: tf.Tensor) -> tf.Tensor:
        """[B, T, H · D] as [B, T, H, D]."""
        return keras.ops.reshape(x, (*keras.ops.shape(x)[:-1], x.shape[-1] // self.head_dim, self.head_dim))
