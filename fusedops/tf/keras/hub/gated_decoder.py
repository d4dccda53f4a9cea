"""Decoders with a gated feed-forward layer, which each family of models has under its own name."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusedops.tf.keras.hub import made
from fusedops.tf.keras.hub.decoder import CausalDecoder
from fusedops.tf.keras.hub.gated import gated
from fusedops.tf.keras.hub.residual import add_norm


class GatedDecoder(CausalDecoder):
    needs = (
        *CausalDecoder.needs,
        "_self_attention_layernorm",
        "_self_attention_dropout",
        "_feedforward_layernorm",
        "_feedforward_gate_dense",
        "_feedforward_intermediate_dense",
        "_feedforward_output_dense",
        "activation",
    )

    def call(
        self,
        decoder_sequence: tf.Tensor,
        decoder_padding_mask: Any = None,
        decoder_attention_mask: Any = None,
        self_attention_cache: Any = None,
        self_attention_cache_update_index: Any = None,
        training: bool | None = None,
    ) -> Any:
        attended = self._self_attention_layer(
            hidden_states=self._self_attention_layernorm(decoder_sequence),
            attention_mask=self._compute_self_attention_mask(
                decoder_sequence,
                decoder_padding_mask,
                decoder_attention_mask,
                self_attention_cache,
                self_attention_cache_update_index,
            ),
            cache=self_attention_cache,
            cache_update_index=self_attention_cache_update_index,
        )
        if self_attention_cache is not None:
            attended, self_attention_cache = attended
        y = feed_forward(self, self._feedforward_layernorm, attended, decoder_sequence, training)
        return y if self_attention_cache is None else (y, self_attention_cache)


def feed_forward(block: Any, norm: Any, attended: tf.Tensor, residual: tf.Tensor, training: bool | None) -> tf.Tensor:
    """The second half of a block with Llama's names, from the sum of its attention and what went in."""
    x, residual = add_norm(norm, attended, residual, block._self_attention_dropout, training)
    gate, up = block._feedforward_gate_dense, block._feedforward_intermediate_dense
    return block._feedforward_output_dense(gated(gate, up, x, block.activation)) + residual


__getattr__ = made.counterparts("gated_decoder", GatedDecoder)
