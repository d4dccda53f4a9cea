"""Dense layers whose bias and activation, or gate, are computed in one pass over the product."""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf

import fusedops.tf as fo
from fusedops.tf.keras import activations
from fusedops.tf.keras.layer import FusedLayer, parameter, register


@functools.cache
def has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


@register
class Dense(FusedLayer, keras.layers.Dense):
    """activation(x @ kernel + bias): `fusedops.tf.linear` where there is a GPU; on a CPU, whose products TensorFlow
    computes faster, its product and then `fusedops.tf.bias_act`.

    The arguments, the weights and the config are those of `keras.layers.Dense`.

    Call arguments:
        inputs: [..., columns].

    Returns:
        [..., units] in the layer's compute dtype. The bias is added, and the activation computed, in float32 for 16
        bits, and the value is rounded once. On a CPU the product itself is rounded before, and the bias is not.

    The kernel has relu, gelu, silu and tanh. It also has gelu's approximation by tanh, for which Keras has no name:
    `activation=fusedops.tf.keras.activations.gelu_tanh`. Keras's own code computes all other activations, among them
    sigmoid, because Keras's losses look for the logits before it; layers without an activation, where there is nothing
    to fuse; and quantized layers.

    Example:
        >>> layer = fk.Dense(1, activation="gelu", kernel_initializer="ones")
        >>> layer(tf.constant([[0.5, 0.5]])).numpy().round(4)
        array([[0.8413]], dtype=float32)
    """

    def why_not(self, inputs: Any = None) -> str | None:
        name = activations.fused_name(self.activation)
        if name is None:
            return activations.unfused_activation(self.activation)
        if name == "identity":
            return "without an activation there is nothing to fuse"
        if name == "sigmoid":
            return "Keras's losses need the logits before a sigmoid"
        return f"it is quantized to {self.quantization_mode}" if self.quantization_mode else None

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        name = activations.fused_name(self.activation)
        if name is None or self.why_not():
            return super().call(inputs, training=training)
        if has_gpu() and isinstance(inputs, tf.Tensor):
            kernel = keras.ops.convert_to_tensor(self.kernel)
            bias = None if self.bias is None else keras.ops.convert_to_tensor(self.bias)
            if kernel.dtype == inputs.dtype:
                return fo.linear(inputs, kernel, bias, name, transpose_weight=False)
        x = keras.ops.matmul(inputs, self.kernel)
        return fo.bias_act(x, parameter(self.bias, x), name)

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """As Keras's, which refuses subclasses: this one adds nothing to quantize."""
        super().quantize(mode, type_check=type_check and type(self) is not Dense, config=config)


@register
class GatedDense(FusedLayer, keras.layers.Layer):
    """activation(gate) · up, for the halves [gate, up] of x @ kernel + bias: `fusedops.tf.gated_act`.

    This is the first part of the feed-forward layers SwiGLU ("silu"), GeGLU ("gelu" or "gelu_tanh"), ReGLU ("relu"),
    GLU ("sigmoid") and the bilinear one (None). One product computes both halves.

    Args:
        units: columns of the output.
        activation: "silu", "gelu_tanh", or anything that `keras.activations.get` takes. The kernel has relu, gelu,
            gelu_tanh, silu, sigmoid, tanh and None, the identity; Keras's own code computes the others.
        use_bias, kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer: as in
            `keras.layers.Dense`, applied to the kernel or bias of both halves as one.
        activity_regularizer, kernel_constraint, bias_constraint: likewise. There is no LoRA and no quantization.

    Weights:
        kernel: [columns, 2 · units], the gate's half first.
        bias: [2 · units].

    Call arguments:
        inputs: [..., columns].

    Returns:
        [..., units] in the layer's compute dtype.

    Example:
        >>> layer = fk.GatedDense(1, kernel_initializer="ones")
        >>> layer(tf.constant([[0.5, 0.5]])).numpy().round(4)
        array([[0.7311]], dtype=float32)

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """

    def __init__(
        self,
        units: int,
        activation: Any = "silu",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        if isinstance(units, bool) or not isinstance(units, int) or units <= 0:
            raise ValueError(f"fusedops.tf.keras.GatedDense: units must be a positive int; got {units!r}")
        self.units = units
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.input_spec = keras.layers.InputSpec(min_ndim=2)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        columns = input_shape[-1]
        self.kernel = self.add_weight(
            name="kernel",
            shape=(columns, 2 * self.units),
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(2 * self.units,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: columns})

    def why_not(self, inputs: Any = None) -> str | None:
        name = activations.fused_name(self.activation)
        return activations.unfused_activation(self.activation) if name is None else None

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        # Not gated_linear: TensorFlow has no views, and would copy both halves of the kernel at each call.
        x = keras.ops.matmul(inputs, self.kernel)
        if self.bias is not None:
            x = keras.ops.add(x, self.bias)
        name = activations.fused_name(self.activation)
        if name is None or self.why_not():
            gate, up = keras.ops.split(x, 2, axis=-1)
            return self.activation(gate) * up
        return fo.gated_act(x, activation=name)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }
