"""What a model remembers of its own code: functions traced before its layers changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

# The last is KerasHub's. All are made again when they are wanted next.
_COMPILED = ("train_function", "test_function", "predict_function", "generate_function")


def forget(layers: Iterable[keras.layers.Layer]) -> None:
    """Drops every trace that these layers hold, whether Keras made it or a `tf.function` of theirs."""
    methods: dict[type, list[Any]] = {}
    for layer in layers:
        for name in _COMPILED:
            if vars(layer).get(name) is not None:
                setattr(layer, name, None)
        for name, value in list(vars(layer).items()):
            if _is_traced(value):  # self.step = tf.function(...)
                setattr(layer, name, value._clone(None))
        kind = type(layer)
        if kind not in methods:
            methods[kind] = [value for base in kind.__mro__ for value in vars(base).values() if _is_traced(value)]
        for method in methods[kind]:  # @tf.function over a method: one function for each object
            method._descriptor_cache.pop(layer, None)


def _is_traced(value: object) -> bool:
    return isinstance(value, tf.types.experimental.PolymorphicFunction)
