"""PaliGemma, whose attention and norms are Gemma's."""

from __future__ import annotations

from keras_hub.src.models.pali_gemma import pali_gemma_decoder_block

from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.gemma import GatedBlock


@saved
class PaliGemmaDecoderBlock(GatedBlock, pali_gemma_decoder_block.PaliGemmaDecoderBlock):
    arguments = 5
    of_mask = ("padding_mask", "cache", "cache_update_index", "response_mask")
