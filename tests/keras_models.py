"""Comparing a converted Keras model with what it was before, and both with the same model in float64."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np


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
    """Without the 19 bits that a GPU's matrix products round float32 to, whose errors hide all others."""
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
    """For every weight that is trained. The outputs' own gradients are like random numbers."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        outputs = tf.nest.flatten(model(inputs, training=False))
    upstream = [
        tf.cast(np.cos(np.square(np.arange(y.shape.num_elements()))).reshape(y.shape), y.dtype) for y in outputs
    ]
    found = tape.gradient(outputs, [weight.value for weight in model.trainable_weights], upstream)
    # Not all weights are used. Of an embedding, what each token adds: their sum has no fixed order on a GPU.
    return values([getattr(gradient, "values", gradient) for gradient in found if gradient is not None])


def assert_as_accurate(got: list[np.ndarray], plain: list[np.ndarray], exact: list[np.ndarray], dtype: str) -> None:
    """What fusedops computes errs at most twice as much as what Keras computes, seen over all results.

    Both round at the same places, fusedops never more often, and the errors of many roundings are alike in size. Where
    Keras's happen to be none, one rounding in dtype is allowed.
    """
    for ours, theirs in zip(got, plain, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    sizes = np.array([_size(truth) for truth in exact])
    ours, theirs = (np.array([_size(x - y) for x, y in zip(results, exact, strict=True)]) for results in (got, plain))
    # An exact zero, such as the gradient of a bias of keys in attention: what is computed is nothing but errors.
    zero = theirs > sizes
    for chosen, scales in ((~zero, sizes), (zero, theirs)):
        if chosen.any():
            error, limit = (_size(errors[chosen] / scales[chosen]) for errors in (ours, theirs))
            assert error <= 2 * limit + float(ml_dtypes.finfo(dtype).eps), f"error {error}, of Keras's own code {limit}"


def _size(array: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(array.astype(np.float64)))))


def assert_losses_overlap(got: list[float], plain: list[float], dtype: str, steps: int) -> None:
    """Each step adds at most one rounding in dtype: those of the many terms of a loss average out."""
    np.testing.assert_allclose(got, plain, rtol=(1 + steps) * float(ml_dtypes.finfo(dtype).eps))
