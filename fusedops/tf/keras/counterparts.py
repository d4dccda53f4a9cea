"""Which class a layer, a loss or an optimizer of a known class becomes, and which it was."""

from __future__ import annotations

from typing import Any

import keras

from fusedops import conversion
from fusedops.tf.keras import hub, internals, optimizers
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


class _Layers(conversion.Rules):
    noun = "layers"
    own = _OF_KERAS
    library = "KerasHub"

    def is_ours(self, thing: Any) -> bool:
        return isinstance(thing, _OURS)

    def is_known(self, kind: type) -> bool:
        return kind in _OF_KERAS or hub.is_known(kind)

    def counterpart(self, kind: type) -> type:
        return _OF_KERAS.get(kind) or hub.counterpart(kind)

    def original(self, kind: type) -> type | None:
        if not issubclass(kind, _OURS):
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
        return isinstance(thing, keras.layers.Layer)  # a loss is none


RULES = _Layers()
