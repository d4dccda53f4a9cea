"""Qwen 3.5, and with it its mixture of experts."""

from __future__ import annotations

import keras
from keras_hub.src.models.qwen3_5 import qwen3_5_layers

from fusedops.tf.keras.hub.norms import FusedRMSNorm


@keras.saving.register_keras_serializable("fusedops.hub")
class Qwen3_5LayerNorm(FusedRMSNorm, qwen3_5_layers.Qwen3_5LayerNorm):
    weight_offset = 1.0
