"""EdRec."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras_hub.src.models.edrec import edrec_layers

from fusedops.keras_layers.activations import gelu_tanh
from fusedops.tf.keras.hub import saved
from fusedops.tf.keras.hub.mlp import GatedMLP
from fusedops.tf.keras.hub.norms import FusedRMSNorm


@saved
class EdRecRMSNormalization(FusedRMSNorm, edrec_layers.EdRecRMSNormalization):
    weight_offset = 1.0


@saved
class EdRecGatedFeedForward(GatedMLP, edrec_layers.EdRecGatedFeedForward):
    needs = ("up_proj", "gate_proj", "down_proj")  # up_proj has the activation

    def call(self, x: tf.Tensor, training: bool = False) -> tf.Tensor:
        y = self._down(self._gated(x))
        return self.dropout(y, training=training) if self.dropout_rate else y

    def _function(self) -> Any:
        return gelu_tanh if self.activation == "gelu" else keras.activations.get(self.activation)
