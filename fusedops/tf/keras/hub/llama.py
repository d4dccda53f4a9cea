"""Llama, and with it Llama 3."""

from __future__ import annotations

from keras_hub.src.models.llama import llama_rotary_embedding

from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.rotary import FusedRotation


@saved
class LlamaRotaryEmbedding(FusedRotation, llama_rotary_embedding.LlamaRotaryEmbedding):
    pass
