"""Functions that were traced before the layers of a model changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from fusedops.keras_layers.conversion import remade
from fusedops.tf import internals


def forget(layers: Iterable[keras.layers.Layer]) -> list[str]:
    """Drops every trace that these layers hold, whether Keras made it or a `tf.function` of theirs.

    Returns:
        At most one sentence, on traces that could not be dropped: `tf.function` has no public way.
    """
    methods: dict[type, list[tuple[str, Any]]] = {}
    stale = []
    for layer in layers:
        for name, value in list(vars(layer).items()):
            if not remade(layer, name, value) and _is_traced(value):  # self.step = tf.function(...)
                try:
                    setattr(layer, name, internals.untraced(value))
                except (AttributeError, TypeError):
                    stale.append(f"{layer.name}.{name}")
        kind = type(layer)
        if kind not in methods:
            methods[kind] = [item for base in kind.__mro__ for item in vars(base).items() if _is_traced(item[1])]
        for name, method in methods[kind]:
            try:
                internals.forget(method, layer)  # @tf.function over a method: one function for each object
            except (AttributeError, TypeError):
                stale.append(f"{layer.name}.{name}")
    return [f"this version of TensorFlow keeps the old traces of {', '.join(stale)}"] if stale else []


def _is_traced(value: object) -> bool:
    return isinstance(value, tf.types.experimental.PolymorphicFunction)
