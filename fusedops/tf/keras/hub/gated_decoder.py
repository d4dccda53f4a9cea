"""Decoders with a gated feed-forward layer, under another name in each family of models."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import tensorflow as tf

from fusedops.tf.keras.hub import made
from fusedops.tf.keras.hub.decoder import CausalDecoder
from fusedops.tf.keras.hub.gated import gated
from fusedops.tf.keras.hub.residual import add_norm

of_mask = attrgetter(  # the arguments of `_compute_self_attention_mask`, in order
    "decoder_sequence",
    "decoder_padding_mask",
    "decoder_attention_mask",
    "self_attention_cache",
    "self_attention_cache_update_index",
)


class GatedDecoder(CausalDecoder):
    needs = (
        *CausalDecoder.needs,
        *("_self_attention_layer", "_self_attention_layernorm", "_self_attention_dropout", "_feedforward_layernorm"),
        *("_feedforward_gate_dense", "_feedforward_intermediate_dense", "_feedforward_output_dense", "activation"),
    )
    arguments = 6

    def fused_call(self, given: Any) -> Any:
        cache = given.self_attention_cache
        attended = self._self_attention_layer(
            hidden_states=self._self_attention_layernorm(given.decoder_sequence),
            attention_mask=self._compute_self_attention_mask(*of_mask(given)),
            cache=cache,
            cache_update_index=given.self_attention_cache_update_index,
        )
        if cache is not None:
            attended, cache = attended
        y = feed_forward(self, self._feedforward_layernorm, attended, given.decoder_sequence, given.training)
        return y if cache is None else (y, cache)


def feed_forward(block: Any, norm: Any, attended: tf.Tensor, residual: tf.Tensor, training: bool | None) -> tf.Tensor:
    """The second half of a block with Llama's attribute names, from its attention's output and its own input."""
    x, residual = add_norm(norm, attended, residual, block._self_attention_dropout, training)
    gate, up = block._feedforward_gate_dense, block._feedforward_intermediate_dense
    return block._feedforward_output_dense(gated(gate, up, x, block.activation)) + residual


__getattr__ = made.counterparts("gated_decoder", GatedDecoder)
