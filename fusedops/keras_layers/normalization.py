"""Normalizations of the last dimension."""

from __future__ import annotations

from typing import Any

import keras

from fusedops.keras_layers.backend import fo
from fusedops.keras_layers.direct import DirectLayer
from fusedops.keras_layers.layer import parameter, register, unfused_axis, unfused_input


class _Normalization(DirectLayer):
    def why_not(self, inputs: Any = None) -> str | None:
        return unfused_input(inputs) or unfused_axis(self, inputs) or self._unfused_option()

    def _unfused_option(self) -> str | None:
        return "epsilon is None" if self.epsilon is None else None


@register
class RMSNormalization(_Normalization, keras.layers.RMSNormalization):
    """x · rsqrt(mean(x²) + epsilon) · scale, over the last dimension: `fusedops.tf.rms_norm`.

    The arguments, the weights and the config are those of `keras.layers.RMSNormalization`.

    Call arguments:
        x: [..., columns], float64, float32, float16 or bfloat16.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed and summed in float32, with the scale as it is
        stored, and rounded once.

    Keras's own code computes any other axis, several axes, other dtypes and ragged tensors.

    Example:
        >>> fk.RMSNormalization()(tf.constant([[3.0, 4.0]])).numpy().round(4)
        array([[0.8485, 1.1314]], dtype=float32)

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

    def call(self, x: Any) -> Any:
        return super().call(x) if self.why_not(x) else self._fused(x)

    def _fused(self, x: Any) -> Any:
        return fo.rms_norm(x, parameter(self.scale, x), eps=self.epsilon)

    def fused_add(self, x: Any, residual: Any, dropout: float = 0.0, seed: Any | None = None) -> tuple[Any, Any]:
        """(self(s), s) with s = dropout(x) + residual, in one pass, for inputs that the kernel takes."""
        scale = parameter(self.scale, x)
        return fo.add_rms_norm(x, residual, scale, eps=self.epsilon, dropout=dropout, seed=seed)


@register
class LayerNormalization(_Normalization, keras.layers.LayerNormalization):
    """(x − mean) · rsqrt(var + epsilon) · gamma + beta, over the last dimension: `fusedops.tf.layer_norm`.

    The arguments, the weights and the config are those of `keras.layers.LayerNormalization`. The variance is computed
    from the deviations from the mean.

    Call arguments:
        inputs: [..., columns], float64, float32, float16 or bfloat16.

    Returns:
        A tensor of the inputs' shape, in the layer's compute dtype. 16-bit inputs are computed and summed in float32
        and rounded once.

    Keras's own code computes any other axis, several axes, `rms_scaling`, other dtypes and ragged tensors.

    Example:
        >>> fk.LayerNormalization(epsilon=1e-5)(tf.constant([[1.0, 2.0, 3.0]])).numpy().round(4)
        array([[-1.2247,  0.    ,  1.2247]], dtype=float32)

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """

    def _unfused_option(self) -> str | None:
        return "rms_scaling is set" if self.rms_scaling else super()._unfused_option()

    def call(self, inputs: Any) -> Any:
        if self.why_not(inputs):
            return super().call(inputs)
        return keras.ops.cast(self._fused(inputs), self.compute_dtype)  # Keras does not cast its inputs

    def _fused(self, x: Any) -> Any:
        return fo.layer_norm(x, parameter(self.gamma, x), parameter(self.beta, x), eps=self.epsilon)

    def fused_add(self, x: Any, residual: Any, dropout: float = 0.0, seed: Any | None = None) -> tuple[Any, Any]:
        """(self(s), s) with s = dropout(x) + residual, in one pass, for inputs that the kernel takes."""
        gamma, beta = parameter(self.gamma, x), parameter(self.beta, x)
        return fo.add_layer_norm(x, residual, gamma, beta, eps=self.epsilon, dropout=dropout, seed=seed)
