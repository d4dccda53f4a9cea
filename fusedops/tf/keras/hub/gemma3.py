"""Gemma 3, whose norms T5Gemma 2 has too."""

from __future__ import annotations

import keras
from keras_hub.src.models.gemma3 import gemma3_layers

from fusedops.tf.keras.hub.norms import FusedRMSNorm


@keras.saving.register_keras_serializable("fusedops.hub.gemma3")
class RMSNormalization(FusedRMSNorm, gemma3_layers.RMSNormalization):
    weight_offset = 1.0
