"""Rotary embedding."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import fusedops.tf as fo
from fusedops.tf.keras.internals import AutocastScope
from fusedops.tf.keras.layer import FusedLayer, register


@register
class RotaryEmbedding(FusedLayer, keras.layers.Layer):
    """Rotates each pair of features (i, i + D/2) of a position by an angle: `fusedops.tf.rope`.

    The angle of pair i at position p is p · max_wavelength^(−2i/D) / scaling_factor. The arguments are those of
    KerasHub's `RotaryEmbedding`.

    Args:
        max_wavelength: the base of the angles.
        scaling_factor: what positions are divided by.
        sequence_axis: the dimension of the inputs that holds the positions; the first dimension is the batch.
        feature_axis: the dimension that holds the features, an even number of them.

    Call arguments:
        inputs: [batch, ..., D]. [batch, positions, D], [batch, positions, heads, D] and, with `sequence_axis=2`,
            [batch, heads, positions, D] are read in place; any other order is transposed.
        start_index: the position of the first element; a number or a scalar.
        positions: numbers, [positions] or [batch, positions], to use instead of consecutive ones from start_index on.

    Returns:
        A tensor of the inputs' shape and dtype. 16-bit inputs, and all angles but those of float64 inputs, are computed
        in float32; 16-bit results are rounded once. float64 is computed in float64.

    Example:
        >>> x = tf.constant([[[1.0, 0.0], [1.0, 0.0]]])  # two positions
        >>> fk.RotaryEmbedding()(x).numpy().round(4)
        array([[[1.    , 0.    ],
                [0.5403, 0.8415]]], dtype=float32)

    Source: Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021.
    """

    def __init__(
        self,
        max_wavelength: float = 10000,
        scaling_factor: float = 1.0,
        sequence_axis: int = 1,
        feature_axis: int = -1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_wavelength = max_wavelength
        self.scaling_factor = scaling_factor
        self.sequence_axis = sequence_axis
        self.feature_axis = feature_axis
        self.supports_masking = True
        self.built = True
        # Keras would round positions to the layer's dtype, and 16 bits cannot represent all of them.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True

    def call(self, inputs: tf.Tensor, start_index: Any = 0, positions: Any = None) -> tf.Tensor:
        inputs = self.dtype_policy.convert_input(inputs, self.autocast, self.input_dtype)
        sequence, feature = self._axes(inputs.shape)
        rank = inputs.shape.rank
        in_place = feature == rank - 1 and sequence in (rank - 2, rank - 3)
        x = inputs if in_place else _as_heads(inputs, sequence, feature)
        length = inputs.shape[sequence] or tf.shape(inputs)[sequence]
        with AutocastScope(None):  # for a keras.Variable
            cos, sin = self._angles(x, length, start_index, positions)
        if in_place:
            return fo.rope(x, cos, sin, seq_dim=sequence - rank)
        return _from_heads(fo.rope(x, cos, sin), inputs, sequence, feature)

    def _axes(self, shape: tf.TensorShape) -> tuple[int, int]:
        """The dimensions of the positions and of the features, counted from the front."""
        rank = shape.rank
        if rank is None:
            raise ValueError("fusedops.tf.keras.RotaryEmbedding: the rank of the input must be known; set its shape")
        axes = [axis + rank if axis < 0 else axis for axis in (self.sequence_axis, self.feature_axis)]
        if axes[0] == axes[1] or not all(0 < axis < rank for axis in axes):
            raise ValueError(
                "fusedops.tf.keras.RotaryEmbedding: sequence_axis and feature_axis must be two dimensions behind the "
                f"first, the batch; got {self.sequence_axis} and {self.feature_axis} for an input of {shape}"
            )
        features = shape[axes[1]]
        if features is None or features % 2:
            raise ValueError(
                f"fusedops.tf.keras.RotaryEmbedding: features must be a known, even number; got {features}, dimension "
                f"{self.feature_axis} of the input"
            )
        return axes[0], axes[1]

    def _angles(self, x: tf.Tensor, length: Any, start_index: Any, positions: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """The cosines and sines of all pairs, [length, D/2] or [batch, length, D/2]."""
        features = x.shape[-1]
        dtype = tf.float64 if x.dtype == tf.float64 else tf.float32
        if positions is None:
            positions = tf.cast(tf.range(length), dtype) + tf.cast(start_index, dtype)
        else:
            positions = tf.cast(positions, dtype)
            if positions.shape.rank == 2 and positions.shape[0] == 1:  # one row for the whole batch
                positions = positions[0]
        frequencies = float(self.max_wavelength) ** -(np.arange(0, features, 2) / features) / self.scaling_factor
        angles = positions[..., tf.newaxis] * tf.constant(frequencies, dtype)
        return tf.cos(angles), tf.sin(angles)

    def compute_output_shape(self, input_shape: Any) -> Any:
        self._axes(tf.TensorShape(input_shape))
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "scaling_factor": self.scaling_factor,
            "sequence_axis": self.sequence_axis,
            "feature_axis": self.feature_axis,
        }


def _as_heads(x: tf.Tensor, sequence: int, feature: int) -> tf.Tensor:
    """[batch, positions, the other dimensions as one, features]."""
    x = keras.ops.moveaxis(x, (sequence, feature), (1, -1))
    shape = tf.shape(x)
    heads = tf.reshape(x, tf.stack([shape[0], shape[1], tf.reduce_prod(shape[2:-1]), shape[-1]]))
    heads.set_shape([None, None, None, x.shape[-1]])
    return heads


def _from_heads(heads: tf.Tensor, like: tf.Tensor, sequence: int, feature: int) -> tf.Tensor:
    """Undoes `_as_heads`, whose argument was `like`."""
    moved = keras.ops.moveaxis(like, (sequence, feature), (1, -1))
    y = keras.ops.moveaxis(tf.reshape(heads, tf.shape(moved)), (1, -1), (sequence, feature))
    y.set_shape(like.shape)
    return y
