"""Gated feed-forward blocks that are layers."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from fusedops.tf.keras.hub import made
from fusedops.tf.keras.hub.gated import gated
from fusedops.tf.keras.hub.layer import HubLayer


class GatedMLP(HubLayer):
    """down(activation(gate(x)) · up(x)). `needs` names the three layers, in the order gate, up, down."""

    needs: ClassVar[tuple[str, ...]] = ("gate_proj", "up_proj", "down_proj")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self._down(self._gated(x))

    def _gated(self, x: tf.Tensor) -> tf.Tensor:
        gate, up = (getattr(self, name) for name in self.needs[:2])
        return gated(gate, up, x, self._function())

    def _down(self, x: tf.Tensor) -> tf.Tensor:
        return getattr(self, self.needs[2])(x)

    def _function(self) -> Any:
        return getattr(self, "activation", keras.activations.silu)


class FeedForward(GatedMLP):
    """A gated MLP with the attribute names of Qwen's mixtures of experts."""

    needs = ("_feedforward_gate_dense", "_feedforward_intermediate_dense", "_feedforward_output_dense")


__getattr__ = made.counterparts("mlp", FeedForward)
