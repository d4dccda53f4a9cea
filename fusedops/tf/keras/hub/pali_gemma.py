"""PaliGemma, whose attention and norms are Gemma's."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras_hub.src.models.pali_gemma import pali_gemma_decoder_block

from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.gemma import GatedBlock


@saved
class PaliGemmaDecoderBlock(GatedBlock, pali_gemma_decoder_block.PaliGemmaDecoderBlock):
    def call(
        self,
        x: tf.Tensor,
        padding_mask: Any = None,
        response_mask: Any = None,
        cache: Any = None,
        cache_update_index: Any = 0,
    ) -> Any:
        def mask(normalized: tf.Tensor) -> Any:
            return self._compute_attention_mask(normalized, padding_mask, cache, cache_update_index, response_mask)

        return self._block(x, mask, cache, cache_update_index=cache_update_index)
