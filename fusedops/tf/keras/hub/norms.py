"""Root mean square normalization, which each family of models has under its own name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
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

    def fused_add(self, x: tf.Tensor, residual: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        scale = parameter(self.scale, x)
        return fo.add_rms_norm(x, residual, scale, eps=self.epsilon, weight_offset=self.weight_offset)


def _made() -> Iterator[type]:
    """A counterpart of each class, with its name, by which Keras finds it in a saved model."""
    for place in (place for place, module in MODULES.items() if module == "norms"):
        module, _, name = place.rpartition(".")
        try:
            base = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):  # another version of KerasHub has no such model, and no layer of it
            continue
        kind = type(name, (FusedRMSNorm, base), {"__module__": __name__})
        yield keras.saving.register_keras_serializable("fusedops.hub")(kind)


_NORMS = {kind.__name__: kind for kind in _made()}


def __getattr__(name: str) -> type:
    if name not in _NORMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _NORMS[name]
