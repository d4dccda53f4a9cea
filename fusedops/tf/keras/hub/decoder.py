"""Decoders. They make no mask of all pairs of positions if their attention is ours."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import tensorflow as tf

from fusedops.tf.keras.hub import made
from fusedops.tf.keras.hub.attention import FusedAttention
from fusedops.tf.keras.hub.causal import decoder_visibility
from fusedops.tf.keras.hub.layer import HubLayer


class CausalDecoder(HubLayer):
    needs: ClassVar[tuple[str, ...]] = ("_self_attention_layer", "_compute_self_attention_mask")

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
        if type(self._self_attention_layer)._compute_attention is not FusedAttention._compute_attention:
            return make_mask()
        return decoder_visibility(make_mask, *given, window=getattr(self, "sliding_window", None))


__getattr__ = made.counterparts("decoder", CausalDecoder)
