"""Gemma 3. T5Gemma 2 shares its norms."""

from __future__ import annotations

from typing import Any

from keras_hub.src.models.gemma3 import gemma3_attention, gemma3_decoder_block, gemma3_layers

from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.gemma import GatedBlock, WindowedAttention
from fusedops.tf.keras.hub.norms import FusedRMSNorm


@saved
class RMSNormalization(FusedRMSNorm, gemma3_layers.RMSNormalization):
    weight_offset = 1.0


@saved
class CachedGemma3Attention(WindowedAttention, gemma3_attention.CachedGemma3Attention):
    pass


@saved
class Gemma3DecoderBlock(GatedBlock, gemma3_decoder_block.Gemma3DecoderBlock):
    arguments = 6
    of_mask = ("padding_mask", "vision_mask", "cache", "cache_update_index")
    of_cache = ("cache_update_index", "cache_update_mask")

    def fused_call(self, given: Any) -> Any:
        if given.x.dtype == "float16":  # KerasHub's own code bounds its sums
            return super().call(**vars(given))
        return super().fused_call(given)
