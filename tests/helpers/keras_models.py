"""Code shared by the tests of converted Keras models: a model in another dtype, its results and gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.converting import converted
from tests.helpers.numerics import assert_same_bits


@contextlib.contextmanager
def policy(keras: Any, name: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Disables TF32, in whose rounding all other errors would disappear."""
    import tensorflow as tf

    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def twin(keras: Any, build: Callable[[], Any], model: Any, dtype: str = "float64") -> Any:
    """The same model with the same weights, built under another policy."""
    with policy(keras, dtype):
        other = build()
    other.set_weights(model.get_weights())
    return other


def values(tree: Any) -> list[np.ndarray]:
    import tensorflow as tf

    return [np.asarray(tf.convert_to_tensor(x)) for x in tf.nest.flatten(tree)]


def gradients(model: Any, inputs: Any) -> list[np.ndarray]:
    """The gradient of every trainable weight. The upstream gradients look like random numbers."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        outputs = tf.nest.flatten(model(inputs, training=False))
    upstream = [
        tf.cast(np.cos(np.square(np.arange(y.shape.num_elements()))).reshape(y.shape), y.dtype) for y in outputs
    ]
    found = tape.gradient(outputs, [weight.value for weight in model.trainable_weights], upstream)
    # Not all weights are used. For an embedding, the terms of each token: their sum has no fixed order on a GPU.
    return values([getattr(gradient, "values", gradient) for gradient in found if gradient is not None])


def assert_loads_converted(keras: Any, fk: Any, model: Any, inputs: Any, path: Path) -> None:
    """Converts and saves a model: the loaded model gives the bits of the saved one."""
    expected = values(model(inputs))
    converted(fk, model).save(path)
    for got, value in zip(values(keras.models.load_model(path)(inputs)), expected, strict=True):
        assert_same_bits(got, value)
