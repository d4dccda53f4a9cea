"""The counterparts of layers, losses, optimizers and models."""

from __future__ import annotations

from typing import Any

import keras

from fusedops.keras_layers.counterparts import LAYERS, Layers
from fusedops.tf.keras import fused_loss, hub, optimizers

_ALL: dict[type, type] = {
    **LAYERS,
    keras.optimizers.Adam: optimizers.Adam,
    keras.optimizers.AdamW: optimizers.AdamW,
    keras.optimizers.SGD: optimizers.SGD,
}


class AllLayers(Layers):
    """The rules for layers, losses and optimizers, and with `fuse_loss` for compiled models."""

    library = "KerasHub"
    own = _ALL
    ours = (*Layers.ours, optimizers.FusedOptimizer)

    def __init__(self, fuse_loss: bool = False) -> None:
        self._fuse_loss = fuse_loss

    def is_known(self, kind: type) -> bool:
        return super().is_known(kind) or hub.is_known(kind)

    def has_counterpart(self, kind: type) -> bool:
        return self.is_known(kind) or (self._fuse_loss and issubclass(kind, fused_loss.KINDS))

    def counterpart(self, kind: type) -> type:
        if issubclass(kind, keras.Model):
            return fused_loss.counterpart(kind)
        return self.own.get(kind) or hub.counterpart(kind)

    def original(self, kind: type) -> type | None:
        return kind.original if issubclass(kind, fused_loss.WithoutLogits) else super().original(kind)

    def skip_reason(self, thing: Any) -> str | None:
        if self._fuse_loss and isinstance(thing, keras.Model):
            return fused_loss.unfused(thing)
        return super().skip_reason(thing)


RULES = AllLayers()
