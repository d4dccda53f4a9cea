"""A residual connection and the normalization of its sum, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from fusedops.tf.keras.layer import register
from fusedops.tf.keras.normalization import LayerNormalization, RMSNormalization


class _AddNormalization:
    """A layer of two inputs and two outputs, all of one shape. The outputs have the mask of x."""

    _arity = 2

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.autocast = True  # both inputs are cast to one dtype

    def build(self, input_shape: Any) -> None:
        super().build(_one(input_shape))  # type: ignore[misc]

    def call(self, inputs: Any, residual: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        x, residual = _pair(inputs, residual)
        if self.why_not(x):  # type: ignore[attr-defined]
            s = _sum(x, residual)
            return super().call(s), s  # type: ignore[misc]
        return self._fused(x, residual)  # type: ignore[attr-defined]

    def compute_output_shape(self, input_shape: Any) -> Any:
        shape = tuple(_one(input_shape))
        return shape, shape

    def compute_output_spec(self, inputs: Any, residual: Any = None) -> Any:
        x, _ = _pair(inputs, residual)
        return tuple(keras.KerasTensor(x.shape, self.compute_dtype) for _ in range(2))  # type: ignore[attr-defined]

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        mask = previous_mask[0] if isinstance(previous_mask, (list, tuple)) else previous_mask
        return mask, mask

    def get_build_config(self) -> Any:
        config = super().get_build_config()  # type: ignore[misc]
        return config and {"input_shape": _one(config["input_shape"])}


def _one(input_shape: Any) -> Any:
    """The shape of x, from its own or from those of x and the residual."""
    if isinstance(input_shape, (list, tuple)) and not isinstance(input_shape[0], (list, tuple)):
        return input_shape
    shapes = _two(input_shape)
    _check_shapes(*shapes)
    return shapes[0]


def _pair(inputs: Any, residual: Any) -> Sequence[tf.Tensor]:
    pair = _two(inputs if residual is None else (inputs, residual))
    _check_shapes(*(x.shape for x in pair))
    return pair


def _two(inputs: Any) -> Sequence[Any]:
    if isinstance(inputs, (list, tuple)) and len(inputs) == 2:
        return inputs
    raise ValueError(
        f"an added normalization takes two tensors, layer(x, residual) or layer([x, residual]); got {inputs!r}"
    )


def _check_shapes(x: Any, residual: Any) -> None:
    """The kernel's check, as far as shapes are known before it runs."""
    if not tf.TensorShape(x).is_compatible_with(residual):
        raise ValueError(f"an added normalization: residual must have x's shape, {list(x)}; got {list(residual)}")


def _sum(x: tf.Tensor, residual: tf.Tensor) -> tf.Tensor:
    """The sum. Dense tensors are not broadcast, even if their shapes are unknown."""
    return tf.add_n([x, residual]) if isinstance(x, tf.Tensor) else x + residual


@register
class AddRMSNormalization(_AddNormalization, RMSNormalization):
    """(rms_normalization(s), s) with s = x + residual: `fusedops.tf.add_rms_norm`.

    The arguments, the weights and the config are those of `RMSNormalization`, and Keras's own code computes the same
    cases.

    Call arguments:
        x, residual: two tensors of one shape, as two arguments or as one list; both are cast to the layer's compute
            dtype.

    Returns:
        Two tensors of x's shape, with the mask of x. s is rounded to the layer's compute dtype before it is normalized.

    Example:
        >>> y, s = fk.AddRMSNormalization()(tf.constant([[1.0, 2.0]]), tf.constant([[2.0, 2.0]]))
        >>> y.numpy().round(4), s.numpy()
        (array([[0.8485, 1.1314]], dtype=float32), array([[3., 4.]], dtype=float32))
    """

    _fused = RMSNormalization.fused_add  # type: ignore[assignment]


@register
class AddLayerNormalization(_AddNormalization, LayerNormalization):
    """(layer_normalization(s), s) with s = x + residual: `fusedops.tf.add_layer_norm`.

    The arguments, the weights and the config are those of `LayerNormalization`, and Keras's own code computes the same
    cases.

    Call arguments:
        x, residual: two tensors of one shape, as two arguments or as one list; both are cast to the layer's compute
            dtype.

    Returns:
        Two tensors of x's shape, with the mask of x. s is rounded to the layer's compute dtype before it is normalized.

    Example:
        >>> y, s = fk.AddLayerNormalization(epsilon=1e-5)(tf.constant([[1.0, 2.0]]), tf.constant([[2.0, 2.0]]))
        >>> y.numpy().round(4), s.numpy()
        (array([[-1.,  1.]], dtype=float32), array([[3., 4.]], dtype=float32))
    """

    _fused = LayerNormalization.fused_add  # type: ignore[assignment]
