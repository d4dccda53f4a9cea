"""Llama, and with it Llama 3."""

from __future__ import annotations

import keras
from keras_hub.src.models.llama import llama_rotary_embedding

from fusedops.tf.keras.hub.rotary import FusedRotation


@keras.saving.register_keras_serializable("fusedops.hub")
class LlamaRotaryEmbedding(FusedRotation, llama_rotary_embedding.LlamaRotaryEmbedding):
    pass
