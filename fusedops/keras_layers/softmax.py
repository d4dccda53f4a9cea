"""Softmax."""

from __future__ import annotations

from typing import Any

import keras

from fusedops import loading
from fusedops.keras_layers.backend import fo, own
from fusedops.keras_layers.direct import DirectLayer
from fusedops.keras_layers.layer import register, unfused_axis, unfused_input

_NUMBERS_ARE_FACTORS = not loading.at_least(keras.__version__, "3.13")  # in masks; later versions compare with 0.5


@register
class Softmax(DirectLayer, keras.layers.Softmax):
    """exp(x) / Σ exp(x), over the last dimension, with a mask: `fusedops.tf.softmax`.

    The arguments and the config are those of `keras.layers.Softmax`.

    Call arguments:
        inputs: [..., columns], float64, float32, float16 or bfloat16.
        mask: bool, or numbers of which those above 0.5 keep an element; broadcastable to the inputs. A row in which
            every element is masked is all zeros. Keras 3.12 multiplies by the numbers of a mask, and then computes it
            itself.

    Returns:
        A tensor of the inputs' shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Keras's own code computes any other axis, several axes, other dtypes and ragged tensors.

    Example:
        >>> fk.Softmax()(tf.constant([[3.0, 4.0]])).numpy().round(4)
        array([[0.2689, 0.7311]], dtype=float32)
        >>> fk.Softmax(axis=0).why_not(tf.ones([2, 2]))
        'axis 0 is not the last'

    Source: Bridle, "Probabilistic interpretation of feedforward classification network outputs", 1990.
    """

    def why_not(self, inputs: Any = None) -> str | None:
        return unfused_input(inputs) or unfused_axis(self, inputs)

    def call(self, inputs: Any, mask: Any = None) -> Any:
        is_bool = mask is None or own.name_of(mask.dtype) == "bool"
        if self.why_not(inputs) or (_NUMBERS_ARE_FACTORS and not is_bool):
            return super().call(inputs, mask=mask)
        if mask is None:
            return self._fused(inputs)
        visible = mask if is_bool else keras.ops.greater(mask, keras.ops.cast(0.5, mask.dtype))
        return fo.softmax(inputs, mask=visible)

    def _fused(self, x: Any) -> Any:
        y = fo.softmax(x)
        try:
            y._keras_logits = x  # like Keras's softmax: its losses use them instead of log(y)
        except AttributeError:  # JAX's arrays take no attributes
            return y
        return y
