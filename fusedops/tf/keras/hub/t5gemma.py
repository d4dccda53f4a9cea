"""T5Gemma and T5Gemma 2."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from fusedops.keras_layers.activations import gelu_tanh
from fusedops.tf.keras.hub import made
from fusedops.tf.keras.hub.mlp import GatedMLP


class DroppingMLP(GatedMLP):
    """A gated MLP with dropout behind the gate."""

    def call(self, x: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        return self._down(self.dropout(self._gated(x), training=training))

    def _function(self) -> Any:
        return gelu_tanh if self.hidden_activation == "gelu_approximate" else self.act_fn


__getattr__ = made.counterparts("t5gemma", DroppingMLP)
