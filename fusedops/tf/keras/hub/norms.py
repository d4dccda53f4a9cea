"""Root mean square normalization, which every family of models has under a name of its own."""

from __future__ import annotations

import importlib
from typing import ClassVar

import keras
import tensorflow as tf

import fusedops.tf as fo
from fusedops.tf.keras.hub import MODULES
from fusedops.tf.keras.hub.layer import HubLayer
from fusedops.tf.keras.layer import parameter


class FusedRMSNorm(HubLayer):
    needs = ("scale", "epsilon")
    weight_offset: ClassVar[float] = 0.0

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return fo.rms_norm(x, parameter(self.scale, x), eps=self.epsilon, weight_offset=self.weight_offset)

    def add_norm(self, x: tf.Tensor, residual: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        scale = parameter(self.scale, x)
        return fo.add_rms_norm(x, residual, scale, eps=self.epsilon, weight_offset=self.weight_offset)


for _name in (name for name, module in MODULES.items() if module == "norms"):
    _module, _, _kind = _name.rpartition(".")
    try:
        _base = getattr(importlib.import_module(_module), _kind)
    except (ImportError, AttributeError):  # another version of KerasHub has no such model, and no layer of it
        continue
    globals()[_kind] = keras.saving.register_keras_serializable("fusedops.hub")(type(_kind, (FusedRMSNorm, _base), {}))
