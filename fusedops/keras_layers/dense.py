"""Dense layers whose bias and activation, or gate, are computed in one pass over the product."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import keras

from fusedops.functions.common import Activation
from fusedops.keras_layers import activations
from fusedops.keras_layers.backend import PACKAGE, fo, own
from fusedops.keras_layers.layer import FusedLayer, parameter, register


class _FusedDense(FusedLayer):
    """Base of `Dense` and `EinsumDense`."""

    @property
    def _has_bias(self) -> bool:
        """True if the layer has a bias, even before it is built."""
        raise NotImplementedError

    def why_not(self, inputs: Any = None) -> str | None:
        name = activations.fused_name(self.activation)
        if name is None:
            return activations.unfused_activation(self.activation)
        if name == "identity" and not self._has_bias:
            return "without a bias and an activation there is nothing to fuse"
        if name == "sigmoid":
            return "Keras's losses need the logits before a sigmoid"
        if self.quantization_mode:
            return f"it is quantized to {self.quantization_mode}"
        return None if self._takes_cpu(name) or own.has_gpu() else f"without a GPU, {own.TITLE}'s product is faster"

    def _takes_cpu(self, activation: Activation) -> bool:
        """True if there is something to fuse after the backend's product on a CPU."""
        return False

    def _on_gpu(self, x: Any, contracted: int) -> Any | None:
        """The output by the kernel, which contracts x's last axes with the kernel's first ones; None without a GPU."""
        if not own.has_gpu() or not isinstance(x, own.TENSOR):
            return None
        name = activations.fused_name(self.activation)
        if name is None or self.why_not():
            return None
        kernel = keras.ops.convert_to_tensor(self.kernel)
        if kernel.dtype != x.dtype:
            return None
        bias = None if self.bias is None else keras.ops.convert_to_tensor(self.bias)
        outer = keras.ops.shape(x)[: len(x.shape) - contracted]
        columns, features = math.prod(kernel.shape[:contracted]), kernel.shape[contracted:]
        if contracted > 1:
            x = keras.ops.reshape(x, (*outer, columns))
        if len(kernel.shape) > 2:
            kernel = keras.ops.reshape(kernel, (columns, math.prod(features)))
            bias = None if bias is None else keras.ops.reshape(bias, [-1])
        y = fo.linear(x, kernel, bias, name, transpose_weight=False)
        return y if len(features) == 1 else keras.ops.reshape(y, (*outer, *features))

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """Keras's quantization, which refuses subclasses. These add nothing to quantize."""
        super().quantize(mode, type_check=type_check and type(self) not in (Dense, EinsumDense), config=config)


@register
class Dense(_FusedDense, keras.layers.Dense):
    """activation(x @ kernel + bias): `fusedops.tf.linear` where there is a GPU; on a CPU, whose products TensorFlow
    computes faster, its product and then `fusedops.tf.bias_act`.

    The arguments, the weights and the config are those of `keras.layers.Dense`.

    Call arguments:
        inputs: [..., columns].

    Returns:
        [..., units] in the layer's compute dtype. The bias is added, and the activation computed, in float32 for 16
        bits, and the value is rounded once. On a CPU the product itself is rounded before, and the bias is not.

    The kernel has relu, gelu, silu and tanh. It also has gelu's approximation by tanh, for which Keras has no name:
    `activation=fusedops.tf.keras.activations.gelu_tanh`. Without an activation the bias and its gradient are fused, on
    a GPU; on a CPU Keras's own code computes such a layer. It also computes all other activations, among them sigmoid,
    because Keras's losses look for the logits before it; layers with neither a bias nor an activation, where there is
    nothing to fuse; and quantized layers.

    Example:
        >>> layer = fk.Dense(1, activation="gelu", kernel_initializer="ones")
        >>> layer(tf.constant([[0.5, 0.5]])).numpy().round(4)
        array([[0.8413]], dtype=float32)
    """

    @property
    def _has_bias(self) -> bool:
        return bool(self.use_bias)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        y = self._on_gpu(inputs, contracted=1)
        if y is not None:
            return y
        name = activations.fused_name(self.activation)
        if name is None or self.why_not() or not self._takes_cpu(name):
            return super().call(inputs, training=training)
        x = keras.ops.matmul(inputs, self.kernel)
        return fo.bias_act(x, parameter(self.bias, x), name)

    def _takes_cpu(self, activation: Activation) -> bool:
        return activation != "identity"


@register
class EinsumDense(_FusedDense, keras.layers.EinsumDense):
    """activation(x · kernel + bias) over some of x's last axes: `fusedops.tf.linear`, where there is a GPU.

    The arguments, the weights and the config are those of `keras.layers.EinsumDense`. Keras's attention layers project
    with it; TensorFlow's own gradient of such a bias takes longer than the product.

    Call arguments:
        inputs: as the equation says.

    Returns:
        A tensor as the equation says, in the layer's compute dtype. In 16 bits the bias is added in float32, and the
        value is rounded once.

    The kernel takes equations that multiply the last axes of x with the first axes of the kernel, in their order, such
    as "abc,cde->abde" and "abcd,cde->abe", with a bias over all others of the kernel. It has the activations that
    `Dense` has. Keras's own code computes all others, and all on a CPU.

    Example:
        >>> layer = fk.EinsumDense("ab,bcd->acd", output_shape=(2, 1), bias_axes="cd", kernel_initializer="ones")
        >>> layer(tf.constant([[0.5, 0.5]])).numpy()
        array([[[1.],
                [1.]]], dtype=float32)
    """

    @property
    def _has_bias(self) -> bool:
        return self.bias_axes is not None

    def why_not(self, inputs: Any = None) -> str | None:
        product = _product(self.equation)
        if product is None:
            return f"{self.equation} is no product of last axes with first ones"
        if self.bias_axes not in (None, product[1]):
            return f"its bias is over {self.bias_axes}, not over {product[1]}"
        return super().why_not(inputs)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        product = _product(self.equation)
        y = None if product is None else self._on_gpu(inputs, contracted=product[0])
        return super().call(inputs, training=training) if y is None else y


@functools.cache
def _product(equation: str) -> tuple[int, str] | None:
    """The number of last axes of x contracted with the kernel's first ones, and the kernel's other axes.

    None for equations that do more.
    """
    x, kernel, y = equation.replace("->", ",").split(",")
    for count in range(1, len(kernel)):
        outer, features = x[:-count], kernel[count:]
        letters = x.replace(".", "") + features
        if x[-count:] == kernel[:count] and y == outer + features and len(set(letters)) == len(letters):
            return count, features
    return None


_OPTIONS: dict[str, Any] = {  # options of a weight, and the modules that serialize them
    "initializer": keras.initializers,
    "regularizer": keras.regularizers,
    "constraint": keras.constraints,
}


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
        given = locals()
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        if isinstance(units, bool) or not isinstance(units, int) or units <= 0:
            raise ValueError(f"{PACKAGE}.keras.GatedDense: units must be a positive int; got {units!r}")
        self.units = units
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        for weight, option in itertools.product(("kernel", "bias"), _OPTIONS):
            setattr(self, f"{weight}_{option}", _OPTIONS[option].get(given[f"{weight}_{option}"]))
        self.input_spec = keras.layers.InputSpec(min_ndim=2)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        columns = input_shape[-1]
        kernel, bias = ({x: getattr(self, f"{weight}_{x}") for x in _OPTIONS} for weight in ("kernel", "bias"))
        self.kernel = self.add_weight(name="kernel", shape=(columns, 2 * self.units), **kernel)
        self.bias = self.add_weight(name="bias", shape=(2 * self.units,), **bias) if self.use_bias else None
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: columns})

    def why_not(self, inputs: Any = None) -> str | None:
        name = activations.fused_name(self.activation)
        return activations.unfused_activation(self.activation) if name is None else None

    def call(self, inputs: Any) -> Any:
        # Not gated_linear: TensorFlow and JAX have no views, and would copy both halves of the kernel at each call.
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
            **{
                f"{weight}_{option}": module.serialize(getattr(self, f"{weight}_{option}"))
                for option, module in _OPTIONS.items()
                for weight in ("kernel", "bias")
            },
        }
