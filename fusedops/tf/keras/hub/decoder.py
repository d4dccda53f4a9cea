"""Decoders. They make no mask of all pairs of positions if their attention is ours."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import tensorflow as tf

from fusedops.tf.keras.hub import made
from fusedops.tf.keras.hub.attention import FusedAttention
from fusedops.tf.keras.hub.causal import decoder_visibility
from fusedops.tf.keras.hub.layer import HubLayer

_ATTENTION = ("_self_attention_layer", "self_attention_layer", "self_attn", "attention")  # its name in each family


class CausalDecoder(HubLayer):
    needs: ClassVar[tuple[str, ...]] = ("_compute_self_attention_mask",)

    def _compute_self_attention_mask(
        self,
        decoder_sequence: tf.Tensor,
        decoder_padding_mask: Any,
        decoder_attention_mask: Any,
        self_attention_cache: Any,
        self_attention_cache_update_index: Any,
    ) -> Any:
        given = (
            decoder_sequence,
            decoder_padding_mask,
            decoder_attention_mask,
            self_attention_cache,
            self_attention_cache_update_index,
        )
        make_mask = partial(super()._compute_self_attention_mask, *given)
        if not self._takes_visibility():
            return make_mask()
        return decoder_visibility(make_mask, *given, window=getattr(self, "sliding_window", None) or None)

    def _takes_visibility(self) -> bool:
        """True if all layers that get the mask are ours. Qwen's mixtures of experts get it, too, for their loss."""
        attention = next((getattr(self, name) for name in _ATTENTION if hasattr(self, name)), None)
        mixture = getattr(self, "mlp", None)
        return isinstance(attention, FusedAttention) and (
            isinstance(mixture, HubLayer) or not hasattr(mixture, "expert_bank")
        )


__getattr__ = made.counterparts("decoder", CausalDecoder)
