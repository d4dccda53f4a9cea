"""Qwen 3.5, and with it its mixture of experts."""

from __future__ import annotations

from typing import Any

from keras_hub.src.models.qwen3_5 import qwen3_5_decoder, qwen3_5_layers
from keras_hub.src.models.qwen3_5_moe import qwen3_5_moe_decoder

from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.decoder import CausalDecoder
from fusedops.tf.keras.hub.gated_decoder import feed_forward, of_mask
from fusedops.tf.keras.hub.mixture import SparseBlock
from fusedops.tf.keras.hub.norms import FusedRMSNorm


@saved
class Qwen3_5LayerNorm(FusedRMSNorm, qwen3_5_layers.Qwen3_5LayerNorm):
    weight_offset = 1.0


@saved
class Qwen3_5TransformerDecoder(CausalDecoder, qwen3_5_decoder.Qwen3_5TransformerDecoder):
    needs = (
        *CausalDecoder.needs,
        *("layer_type", "_input_layernorm", "_self_attention_dropout", "_post_attention_layernorm"),
        *("_feedforward_gate_dense", "_feedforward_intermediate_dense", "_feedforward_output_dense", "activation"),
    )
    arguments = 7

    def fused_call(self, given: Any) -> Any:
        x, cache = self._input_layernorm(given.decoder_sequence), given.self_attention_cache
        of_cache = {"cache": cache, "cache_update_index": given.self_attention_cache_update_index}
        is_linear = self.layer_type == "linear_attention"
        if is_linear:
            padding = given.decoder_padding_mask
            mixed = self._linear_attn(x, attention_mask=padding, training=given.training, **of_cache)
        else:
            mask = self._compute_self_attention_mask(*of_mask(given))
            mixed = self._self_attention_layer(
                hidden_states=x, attention_mask=mask, position_ids=given.position_ids, **of_cache
            )
        if cache is not None:
            mixed, cache = mixed
        y = feed_forward(self, self._post_attention_layernorm, mixed, given.decoder_sequence, given.training)
        if cache is None:
            return y
        return (y, *cache) if is_linear else (y, cache)


@saved
class Qwen3_5MoeSparseMoeBlock(SparseBlock, qwen3_5_moe_decoder.Qwen3_5MoeSparseMoeBlock):
    router = "_router_gate"
    shared = ("shared_expert", "_shared_expert_gate")
    needs = (router, *shared, "expert_bank", "num_experts", "top_k")
    balancing_loss = staticmethod(qwen3_5_moe_decoder.compute_load_balancing_loss)
