"""Rotary embedding."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np

from fusedops.keras_layers.backend import PACKAGE, fo, own, rank_of
from fusedops.keras_layers.internals import AutocastScope
from fusedops.keras_layers.layer import FusedLayer, register


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

    def call(self, inputs: Any, start_index: Any = 0, positions: Any = None) -> Any:
        inputs = self.dtype_policy.convert_input(inputs, self.autocast, self.input_dtype)
        sequence, feature = self._axes(inputs.shape, rank_of(inputs))
        rank = len(inputs.shape)
        in_place = feature == rank - 1 and sequence in (rank - 2, rank - 3)
        x = inputs if in_place else _as_heads(inputs, sequence, feature)
        length = inputs.shape[sequence] or keras.ops.shape(inputs)[sequence]
        with AutocastScope(None):  # for a keras.Variable
            cos, sin = self._angles(x, length, start_index, positions)
        if in_place:
            return fo.rope(x, cos, sin, seq_dim=sequence - rank)
        return _from_heads(fo.rope(x, cos, sin), inputs, sequence, feature)

    def _axes(self, shape: Any, rank: int | None) -> tuple[int, int]:
        """The dimensions of the positions and of the features, counted from the front."""
        if rank is None:
            raise ValueError(f"{PACKAGE}.keras.RotaryEmbedding: the rank of the input must be known; set its shape")
        axes = [axis + rank if axis < 0 else axis for axis in (self.sequence_axis, self.feature_axis)]
        if axes[0] == axes[1] or not all(0 < axis < rank for axis in axes):
            raise ValueError(
                f"{PACKAGE}.keras.RotaryEmbedding: sequence_axis and feature_axis must be two dimensions behind the "
                f"first, the batch; got {self.sequence_axis} and {self.feature_axis} for an input of {shape}"
            )
        features = shape[axes[1]]
        if features is None or features % 2:
            raise ValueError(
                f"{PACKAGE}.keras.RotaryEmbedding: features must be a known, even number; got {features}, dimension "
                f"{self.feature_axis} of the input"
            )
        return axes[0], axes[1]

    def _angles(self, x: Any, length: Any, start_index: Any, positions: Any) -> tuple[Any, Any]:
        """The cosines and sines of all pairs, [length, D/2] or [batch, length, D/2]."""
        features = x.shape[-1]
        ops = keras.ops
        dtype = "float64" if own.name_of(x.dtype) == "float64" else "float32"
        if positions is None:
            positions = ops.arange(length, dtype=dtype) + ops.cast(start_index, dtype)
        else:
            positions = ops.cast(positions, dtype)
            if rank_of(positions) == 2 and positions.shape[0] == 1:  # one row for the whole batch
                positions = positions[0]
        frequencies = float(self.max_wavelength) ** -(np.arange(0, features, 2) / features) / self.scaling_factor
        angles = positions[..., None] * np.asarray(frequencies, dtype)
        return ops.cos(angles), ops.sin(angles)

    def compute_output_shape(self, input_shape: Any) -> Any:
        self._axes(input_shape, len(input_shape))
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "scaling_factor": self.scaling_factor,
            "sequence_axis": self.sequence_axis,
            "feature_axis": self.feature_axis,
        }


def _as_heads(x: Any, sequence: int, feature: int) -> Any:
    """[batch, positions, the other dimensions as one, features]."""
    x = keras.ops.moveaxis(x, (sequence, feature), (1, -1))
    batch, positions, *others, features = keras.ops.shape(x)
    return keras.ops.reshape(x, (batch, positions, math.prod(others), features))


def _from_heads(heads: Any, like: Any, sequence: int, feature: int) -> Any:
    """Undoes `_as_heads`, whose argument was `like`."""
    moved = keras.ops.moveaxis(like, (sequence, feature), (1, -1))
    return keras.ops.moveaxis(keras.ops.reshape(heads, keras.ops.shape(moved)), (1, -1), (sequence, feature))
