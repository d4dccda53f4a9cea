"""What counterparts of KerasHub's layers have in common."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf

import fusedops.tf as fo
from fusedops.tf.keras.layer import FusedLayer, parameter
from fusedops.tf.keras.normalization import LayerNormalization


class HubLayer(FusedLayer):
    """A layer of KerasHub's with faster methods."""

    needs: ClassVar[tuple[str, ...]] = ()  # attributes of the layer, beside those of every layer, that the methods read

    def why_not(self, inputs: Any = None) -> str | None:
        if not self.built:  # its own layers are made when it is built, and could not be converted yet
            return "not built yet: call the model once, then convert it"
        missing = [name for name in self.needs if not hasattr(self, name)]
        return f"this version of KerasHub's has no attribute {missing[0]}" if missing else None


def add_norm(norm: Any, x: tf.Tensor, residual: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """(norm(s), s) with s = x + residual: in one pass, if the norm is one of ours."""
    if isinstance(norm, HubLayer):
        return norm.add_norm(x, residual)
    if type(norm) is LayerNormalization and not norm.why_not(x):
        return fo.add_layer_norm(x, residual, parameter(norm.gamma, x), parameter(norm.beta, x), eps=norm.epsilon)
    s = x + residual
    return norm(s), s
