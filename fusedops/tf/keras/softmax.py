"""Softmax."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import fusedops.tf as fo
from fusedops import loading
from fusedops.tf.keras.direct import DirectLayer
from fusedops.tf.keras.layer import register, unfused_axis, unfused_input

_NUMBERS_ARE_FACTORS = not loading.at_least(keras.__version__, "3.13")  # in masks, which later became choices


@register
class Softmax(DirectLayer, keras.layers.Softmax):
    """exp(x) / Σ exp(x) of what is not masked, over the last dimension: `fusedops.tf.softmax`.

    Arguments and config are those of `keras.layers.Softmax`. `mask`: bool, or numbers of which those above 0.5 keep an
    element; broadcastable to the input. A row of which nothing is kept is all zeros. Keras 3.12 weighs elements by the
    numbers of a mask, and computes them itself.

    Input and output: [..., columns], float64, float32, float16 or bfloat16. 16-bit inputs are computed in float32 and
    rounded once.

    Keras's own code computes any other axis, several axes, other dtypes and ragged tensors.

    Source: Bridle, "Probabilistic interpretation of feedforward classification network outputs", 1990.
    """

    def why_not(self, inputs: Any = None) -> str | None:
        return unfused_input(inputs) or unfused_axis(self, inputs)

    def call(self, inputs: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
        if self.why_not(inputs) or (_NUMBERS_ARE_FACTORS and mask is not None and mask.dtype != tf.bool):
            return super().call(inputs, mask=mask)
        if mask is not None:
            if mask.dtype != tf.bool:
                mask = tf.greater(mask, tf.cast(0.5, mask.dtype))
            return fo.softmax(inputs, mask=mask)
        return self._fused(inputs)

    def _fused(self, x: tf.Tensor) -> tf.Tensor:
        y = fo.softmax(x)
        y._keras_logits = x  # as Keras's softmax does: its losses use them in place of log(y)
        return y
