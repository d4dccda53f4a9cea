"""Gemma 4."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras_hub.src.models.gemma4 import gemma4_layers

from fusedops.tf.keras.hub.norms import FusedRMSNorm


@keras.saving.register_keras_serializable("fusedops.hub.gemma4")
class RMSNormalization(FusedRMSNorm, gemma4_layers.RMSNormalization):
    pass


@keras.saving.register_keras_serializable("fusedops.hub")
class Gemma4VNorm(FusedRMSNorm, gemma4_layers.Gemma4VNorm):
    needs = ("epsilon",)

    def _weight(self, x: tf.Tensor) -> None:
        return None
