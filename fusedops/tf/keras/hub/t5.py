"""T5."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras_hub.src.models.t5 import t5_layer_norm

from fusedops.tf.keras.hub.norms import FusedRMSNorm
from fusedops.tf.keras.layer import parameter


@keras.saving.register_keras_serializable("fusedops.hub")
class T5LayerNorm(FusedRMSNorm, t5_layer_norm.T5LayerNorm):
    needs = ("weight", "epsilon")

    def _weight(self, x: tf.Tensor) -> Any:
        return parameter(self.weight, x)
