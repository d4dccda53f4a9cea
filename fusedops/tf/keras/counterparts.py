"""The counterparts of layers, losses, optimizers and models."""

from __future__ import annotations

from typing import Any

import keras

from fusedops import conversion
from fusedops.tf.keras import fused_loss, hub, internals, optimizers
from fusedops.tf.keras.attention import GroupQueryAttention, MultiHeadAttention
from fusedops.tf.keras.dense import Dense, EinsumDense
from fusedops.tf.keras.dropout import Dropout
from fusedops.tf.keras.layer import FusedLayer
from fusedops.tf.keras.losses import SparseCategoricalCrossentropy
from fusedops.tf.keras.normalization import LayerNormalization, RMSNormalization
from fusedops.tf.keras.softmax import Softmax

_OF_KERAS: dict[type, type] = {
    keras.layers.Dense: Dense,
    keras.layers.Dropout: Dropout,
    keras.layers.EinsumDense: EinsumDense,
    keras.layers.GroupQueryAttention: GroupQueryAttention,
    keras.layers.LayerNormalization: LayerNormalization,
    keras.layers.MultiHeadAttention: MultiHeadAttention,
    keras.layers.RMSNormalization: RMSNormalization,
    keras.layers.Softmax: Softmax,
    keras.losses.SparseCategoricalCrossentropy: SparseCategoricalCrossentropy,
    keras.optimizers.Adam: optimizers.Adam,
    keras.optimizers.AdamW: optimizers.AdamW,
    keras.optimizers.SGD: optimizers.SGD,
}
_OURS = (FusedLayer, SparseCategoricalCrossentropy, optimizers.FusedOptimizer)


class Layers(conversion.Rules):
    """The rules for layers, losses and optimizers, and with `fuse_loss` for compiled models."""

    noun = "layers"
    own = _OF_KERAS
    library = "KerasHub"

    def __init__(self, fuse_loss: bool = False) -> None:
        self._fuse_loss = fuse_loss

    def is_ours(self, thing: Any) -> bool:
        return isinstance(thing, _OURS)

    def is_known(self, kind: type) -> bool:
        return kind in _OF_KERAS or hub.is_known(kind)

    def has_counterpart(self, kind: type) -> bool:
        return self.is_known(kind) or (self._fuse_loss and issubclass(kind, fused_loss.KINDS))

    def counterpart(self, kind: type) -> type:
        if issubclass(kind, keras.Model):
            return fused_loss.counterpart(kind)
        return _OF_KERAS.get(kind) or hub.counterpart(kind)

    def original(self, kind: type) -> type | None:
        if issubclass(kind, fused_loss.WithoutLogits):
            return kind.original
        if not issubclass(kind, _OURS):
            return None
        return next((base for base in kind.__mro__ if self.is_known(base) and self.counterpart(base) is kind), None)

    def skip_reason(self, thing: Any) -> str | None:
        if self._fuse_loss and isinstance(thing, keras.Model):
            return fused_loss.unfused(thing)
        return super().skip_reason(thing)

    def become(self, thing: Any, kind: type) -> None:
        internals.become(thing, kind)

    def condition(self, thing: Any) -> str:
        axis = keras.tree.flatten(getattr(thing, "axis", -1))[0]
        unknown = isinstance(thing, keras.layers.Layer) and axis >= 0 and not thing.get_build_config()
        return f"if axis {axis} is the last of its input" if unknown else ""

    def name(self, thing: Any) -> str:
        return str(thing.name)

    def is_container(self, thing: Any) -> bool:
        return internals.has_layers(thing) or isinstance(thing, keras.layers.InputLayer)

    def parameters(self, thing: Any) -> int:
        return internals.parameters(thing)

    def is_counted(self, thing: Any) -> bool:
        return isinstance(thing, keras.layers.Layer)  # not a loss or an optimizer


RULES = Layers()
