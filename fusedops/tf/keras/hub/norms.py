"""Root mean square normalization, under another name in each family of models."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf

import fusedops.tf as fo
from fusedops.keras_layers.layer import parameter
from fusedops.tf.keras.hub import made
from fusedops.tf.keras.hub.layer import HubLayer


class FusedRMSNorm(HubLayer):
    needs: ClassVar[tuple[str, ...]] = ("scale", "epsilon")
    weight_offset: ClassVar[float] = 0.0

    def _weight(self, x: tf.Tensor) -> Any:
        return parameter(self.scale, x)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return fo.rms_norm(x, self._weight(x), eps=self.epsilon, weight_offset=self.weight_offset)

    def fused_add(
        self, x: tf.Tensor, residual: tf.Tensor, dropout: float = 0.0, seed: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        weight, offset = self._weight(x), self.weight_offset
        return fo.add_rms_norm(x, residual, weight, eps=self.epsilon, weight_offset=offset, dropout=dropout, seed=seed)


__getattr__ = made.counterparts("norms", FusedRMSNorm)
