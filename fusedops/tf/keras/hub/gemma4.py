"""Gemma 4."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras_hub.src.models.gemma4 import gemma4_attention, gemma4_decoder_block, gemma4_layers, gemma4_moe

import fusedops.tf as fo
from fusedops.functions.common import Activation
from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.experts import FusedExperts
from fusedops.tf.keras.hub.gated import gated_product
from fusedops.tf.keras.hub.gemma import GroupedAttention
from fusedops.tf.keras.hub.layer import HubLayer
from fusedops.tf.keras.hub.mixture import rows_of
from fusedops.tf.keras.hub.norms import FusedRMSNorm
from fusedops.tf.keras.hub.residual import add_norm


@saved
class RMSNormalization(FusedRMSNorm, gemma4_layers.RMSNormalization):
    pass


@saved
class Gemma4VNorm(FusedRMSNorm, gemma4_layers.Gemma4VNorm):
    needs = ("epsilon",)

    def _weight(self, x: tf.Tensor) -> None:
        return None


@saved
class Gemma4TextAttention(GroupedAttention, gemma4_attention.Gemma4TextAttention):
    """The decoder block applies windows, and norms of queries and keys replace the scale."""


@saved
class Gemma4MoEBlock(FusedExperts, gemma4_moe.Gemma4MoEBlock):
    needs = ("gate_proj", "up_proj", "down_proj", "per_expert_scale")

    def weighted(self, x: tf.Tensor, index: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        scale = keras.ops.cast(keras.ops.take(self.per_expert_scale, index), weight.dtype)
        return super().weighted(x, index, weight * scale)

    def _activation(self) -> Activation:
        return "gelu_tanh"

    def _weights(self) -> tuple[Any, ...]:
        return keras.ops.concatenate([self.gate_proj, self.up_proj], axis=-1), self.down_proj, None, None


@saved
class Gemma4TextDecoderBlock(HubLayer, gemma4_decoder_block.Gemma4TextDecoderBlock):
    needs = (
        *("pre_attention_norm", "attention", "post_attention_norm", "dropout", "pre_ffw_norm", "gating_ffw"),
        *("gating_ffw_2", "ffw_linear", "post_ffw_norm", "enable_moe_block", "hidden_size_per_layer_input"),
        *("is_text_layer", "_compute_attention_mask"),
    )
    arguments = 9

    def why_not(self, inputs: Any = None) -> str | None:
        reason = super().why_not(inputs)
        if reason is None and self._is_quantized():
            return "it is quantized, and KerasHub's multiplies by the integers without their scales"
        return reason

    def _is_quantized(self) -> bool:
        return any(dense.quantization_mode for dense in (self.gating_ffw, self.gating_ffw_2, self.ffw_linear))

    def fused_call(self, given: Any) -> Any:
        x, cache, index = given.x, given.cache, given.cache_update_index
        if x.dtype == "float16" or self._is_quantized():  # KerasHub's own code bounds its sums, and has no scales
            return super().call(**vars(given))
        normalized = self.pre_attention_norm(x)
        mask = self._compute_attention_mask(normalized, given.padding_mask, given.vision_mask, cache, index)
        of_cache = {"cache": cache, "cache_update_index": index, "cache_update_mask": given.cache_update_mask}
        of_layer = {"shared_kv": given.shared_kv, "positions": given.positions}
        of_cache = {} if cache is None else of_cache
        attended, cache = self.attention(normalized, attention_mask=mask, **of_cache, **of_layer)
        attended = self.post_attention_norm(attended)
        if self.dropout:
            attended = self.attention_dropout(attended)

        normalized, residual = add_norm(self.pre_ffw_norm, attended, x)
        y = self.ffw_linear(gated_product(self.gating_ffw, self.gating_ffw_2, normalized, "gelu_tanh"))
        if self.enable_moe_block:
            y = self.post_ffw_norm_dense(y) + self._of_experts(residual)
        y = self.post_ffw_norm(y)
        if self.dropout:
            y = self.feedforward_dropout(y)
        y = y + residual
        if self.hidden_size_per_layer_input > 0 and given.per_layer_input is not None:
            y = self._with_layer_input(y, given.per_layer_input)
        return (y * tf.cast(self.layer_scalar, y.dtype) if self.is_text_layer else y), cache

    def _of_experts(self, x: tf.Tensor) -> tf.Tensor:
        scores, bank = self.moe_router(x), self.moe_expert_bank
        rows = rows_of(self.pre_ffw_norm_moe(x))
        if isinstance(bank, FusedExperts):
            y = bank.scored(rows, scores, self.moe_router.num_experts_per_token)
        else:
            y = bank(rows, scores)
        return self.post_ffw_norm_moe_path(keras.ops.reshape(y, keras.ops.shape(x)))

    def _with_layer_input(self, x: tf.Tensor, per_layer_input: tf.Tensor) -> tf.Tensor:
        gate = self.per_layer_input_gate(x)
        per_layer_input = tf.cast(per_layer_input, gate.dtype)
        if gate.shape == per_layer_input.shape:
            if not gate.shape.is_fully_defined():  # it may still broadcast
                per_layer_input = tf.broadcast_to(per_layer_input, tf.shape(gate))
            y = fo.gated_act(gate, per_layer_input, "gelu_tanh")
        else:
            y = keras.activations.gelu(gate, approximate=True) * per_layer_input
        return x + self.post_per_layer_input_norm(self.per_layer_up_proj(y))
