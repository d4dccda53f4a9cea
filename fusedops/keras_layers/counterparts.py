"""The counterparts of Keras's layers, and of its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras

from fusedops import conversion
from fusedops.keras_layers import internals
from fusedops.keras_layers.attention import GroupQueryAttention, MultiHeadAttention
from fusedops.keras_layers.dense import Dense, EinsumDense
from fusedops.keras_layers.dropout import Dropout
from fusedops.keras_layers.layer import FusedLayer
from fusedops.keras_layers.losses import SparseCategoricalCrossentropy
from fusedops.keras_layers.normalization import LayerNormalization, RMSNormalization
from fusedops.keras_layers.softmax import Softmax

LAYERS: dict[type, type] = {
    keras.layers.Dense: Dense,
    keras.layers.Dropout: Dropout,
    keras.layers.EinsumDense: EinsumDense,
    keras.layers.GroupQueryAttention: GroupQueryAttention,
    keras.layers.LayerNormalization: LayerNormalization,
    keras.layers.MultiHeadAttention: MultiHeadAttention,
    keras.layers.RMSNormalization: RMSNormalization,
    keras.layers.Softmax: Softmax,
    keras.losses.SparseCategoricalCrossentropy: SparseCategoricalCrossentropy,
}


class Layers(conversion.Rules):
    """The rules for layers and losses."""

    noun = "layers"
    library = "Keras"
    own: Mapping[type, type] = LAYERS
    ours: ClassVar[tuple[type, ...]] = (FusedLayer, SparseCategoricalCrossentropy)

    def is_ours(self, thing: Any) -> bool:
        return isinstance(thing, self.ours)

    def is_known(self, kind: type) -> bool:
        return kind in self.own

    def counterpart(self, kind: type) -> type:
        return self.own[kind]

    def original(self, kind: type) -> type | None:
        if not issubclass(kind, self.ours):
            return None
        return next((base for base in kind.__mro__ if self.is_known(base) and self.counterpart(base) is kind), None)

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
