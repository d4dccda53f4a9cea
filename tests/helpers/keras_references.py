"""References for the layers that Keras lacks: layers composed of Keras's own, or of the plain formula."""

from __future__ import annotations

import functools
import math
from typing import Any

import keras
import tensorflow as tf


class _Add:
    def build(self, input_shape: Any) -> None:
        super().build(input_shape[0])  # type: ignore[misc]

    def call(self, inputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        s = inputs[0] + inputs[1]
        return super().call(s), s  # type: ignore[misc]

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape[0], input_shape[0]


class AddRMSNormalization(_Add, keras.layers.RMSNormalization):
    pass


class AddLayerNormalization(_Add, keras.layers.LayerNormalization):
    pass


class DropoutAdd(keras.layers.Dropout):
    def build(self, input_shape: Any) -> None:
        self.built = True

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        x, residual = inputs
        return super().call(x, training=training) + residual


def gelu(x: tf.Tensor, approximate: bool = False) -> tf.Tensor:
    """TensorFlow's own gelu rounds its constants to float32, even in float64."""
    if approximate:
        inner = x + tf.constant(0.044715, x.dtype) * x * x * x
        return x / 2 * (1 + tf.tanh(tf.constant(math.sqrt(2 / math.pi), x.dtype) * inner))
    return x / 2 * (1 + tf.math.erf(x * tf.constant(math.sqrt(0.5), x.dtype)))


def _exact(activation: Any) -> Any:
    """The function of this name or value, with the gelu above."""
    if activation == "gelu_tanh":
        return functools.partial(gelu, approximate=True)
    activation = keras.activations.get(activation)
    if isinstance(activation, functools.partial) and activation.func is keras.activations.gelu:
        return functools.partial(gelu, **activation.keywords)
    return gelu if activation is keras.activations.gelu else activation


class Dense(keras.layers.Dense):
    def __init__(self, units: int, activation: Any = None, **kwargs: Any) -> None:
        super().__init__(units, _exact(activation), **kwargs)


class GatedDense(keras.layers.Dense):
    def __init__(self, units: int, activation: Any = "silu", **kwargs: Any) -> None:
        super().__init__(2 * units, **kwargs)
        self.gate_activation = _exact(activation)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        gate, up = keras.ops.split(super().call(inputs), 2, axis=-1)
        return self.gate_activation(gate) * up


class RotaryEmbedding(keras.layers.Layer):
    """Pairs of features as complex numbers, rotated by e^(i·angle)."""

    def __init__(self, max_wavelength=10000, scaling_factor=1.0, sequence_axis=1, feature_axis=-1, **kwargs) -> None:
        super().__init__(**kwargs)
        self.max_wavelength, self.scaling_factor = max_wavelength, scaling_factor
        self.sequence_axis, self.feature_axis = sequence_axis, feature_axis

    def call(self, inputs: tf.Tensor, start_index: int = 0, positions: Any = None) -> tf.Tensor:
        x = tf.cast(inputs, tf.float64)
        axes = (self.sequence_axis, self.feature_axis)
        x = keras.ops.moveaxis(x, axes, (1, -1))
        pairs = x.shape[-1] // 2
        frequencies = [self.max_wavelength ** (-i / pairs) / self.scaling_factor for i in range(pairs)]
        if positions is None:
            positions = [start_index + i for i in range(x.shape[1])]
        angles = tf.cast(positions, tf.float64)[..., None] * tf.constant(frequencies, tf.float64)
        if angles.shape.rank == 2:
            angles = angles[None]
        angles = tf.reshape(angles, [-1, x.shape[1], *[1] * (x.shape.rank - 3), pairs])
        y = tf.complex(*tf.split(x, 2, -1)) * tf.complex(tf.cos(angles), tf.sin(angles))
        y = tf.concat([tf.math.real(y), tf.math.imag(y)], -1)
        return tf.cast(keras.ops.moveaxis(y, (1, -1), axes), inputs.dtype)
