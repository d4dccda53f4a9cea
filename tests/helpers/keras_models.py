"""Code shared by the tests of converted Keras models: a model in another dtype, its results and gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
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


@contextlib.contextmanager
def roundings(keras: Any, random: np.random.Generator, dtype: str) -> Iterator[None]:
    """Layers of float64 round their results and the gradients of these at random, as a computation in dtype does.

    A softmax and its gradient round within themselves. Their errors do not cancel in the sum over a row, while those of
    the layers' results do.
    """
    import tensorflow as tf

    unit = float(ml_dtypes.finfo(dtype).eps) / 2
    call, softmax = keras.layers.Layer.__call__, tf.nn.softmax

    def rounded(x: Any) -> Any:
        return x * (1 + unit * random.uniform(-1, 1, x.shape))

    @tf.custom_gradient
    def rounded_both_ways(x: Any) -> Any:
        return rounded(x), rounded

    def rounding_call(self: Any, *args: Any, **options: Any) -> Any:
        is_exact = lambda x: getattr(x, "dtype", None) == tf.float64  # noqa: E731
        y = call(self, *args, **options)
        return tf.nest.map_structure(lambda x: rounded_both_ways(tf.convert_to_tensor(x)) if is_exact(x) else x, y)

    def rounding_softmax(x: Any, axis: int = -1) -> Any:
        @tf.custom_gradient
        def rounding(x: Any) -> Any:
            y = rounded(softmax(x, axis))
            return y, lambda dy: y * (dy - rounded(tf.reduce_sum(rounded(y * dy), axis, keepdims=True)))

        return rounding(x)

    keras.layers.Layer.__call__, tf.nn.softmax = rounding_call, rounding_softmax
    try:
        yield
    finally:
        keras.layers.Layer.__call__, tf.nn.softmax = call, softmax


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
