"""Gemma 3, whose norms T5Gemma 2 has too."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras_hub.src.models.gemma3 import gemma3_decoder_block, gemma3_layers

from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.gemma import GatedBlock
from fusedops.tf.keras.hub.norms import FusedRMSNorm


@saved
class RMSNormalization(FusedRMSNorm, gemma3_layers.RMSNormalization):
    weight_offset = 1.0


@saved
class Gemma3DecoderBlock(GatedBlock, gemma3_decoder_block.Gemma3DecoderBlock):
    def call(
        self,
        x: tf.Tensor,
        padding_mask: Any = None,
        vision_mask: Any = None,
        cache: Any = None,
        cache_update_index: Any = 0,
        cache_update_mask: Any = None,
    ) -> Any:
        of_cache = {"cache_update_index": cache_update_index, "cache_update_mask": cache_update_mask}
        if x.dtype == "float16":  # KerasHub's own code bounds its sums
            return super().call(x, padding_mask, vision_mask, cache, **of_cache)

        def mask(normalized: tf.Tensor) -> Any:
            return self._compute_attention_mask(normalized, padding_mask, vision_mask, cache, cache_update_index)

        return self._block(x, mask, cache, **of_cache)
