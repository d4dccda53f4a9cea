"""The experts of a mixture."""

from __future__ import annotations

from typing import Any

import keras

from fusedops.keras_layers import activations
from fusedops.keras_layers.backend import PACKAGE, fo
from fusedops.keras_layers.layer import FusedLayer, register

_WEIGHTS = ("gate_up", "down")


@register
class Experts(FusedLayer, keras.layers.Layer):
    """For every token, the weighted sum of the gated feed-forward layers that a router chose: `fo.experts`.

    Args:
        num_experts: E.
        units: F, the gated values of an expert.
        activation: "silu", or anything that `keras.activations.get` takes and the kernel has: relu, gelu, gelu_tanh,
            silu, sigmoid, tanh and None, the identity.
        use_bias: True if both products have a bias.
        kernel_initializer: of both weights, as of a kernel [columns, E · out] whose columns are divided by expert.
        bias_initializer: of both biases.
        limit, alpha, shift, interleaved: as in `fo.experts`.

    Weights:
        gate_up: [E, columns, 2F].
        down: [E, F, columns].
        gate_up_bias, down_bias: [E, 2F] and [E, columns].

    Call arguments:
        inputs: [..., columns].
        index: int32 or int64 [..., K], the experts of each token. One outside of [0, E) contributes nothing.
        weight: [..., K], of the inputs' dtype or float32, which is not rounded to the layer's compute dtype.

    Returns:
        [..., columns] in the layer's compute dtype.

    Raises:
        ValueError: the kernel has no such activation.

    Example:
        >>> layer = fk.Experts(2, 1, activation="relu", kernel_initializer="ones")
        >>> layer(*map(keras.ops.convert_to_tensor, ([[2.0]], [[0, 1]], [[0.5, 1.0]]))).numpy()
        array([[6.]], dtype=float32)
    """

    def __init__(
        self,
        num_experts: int,
        units: int,
        activation: Any = "silu",
        use_bias: bool = False,
        kernel_initializer: Any = "lecun_uniform",
        bias_initializer: Any = "zeros",
        limit: float = 0.0,
        alpha: float = 1.0,
        shift: float = 0.0,
        interleaved: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_experts, self.units, self.use_bias = num_experts, units, use_bias
        self.activation = activations.get(activation)
        if activations.fused_name(self.activation) is None:
            raise ValueError(f"{PACKAGE}.keras.Experts: {activations.unfused_activation(self.activation)}")
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.limit, self.alpha, self.shift, self.interleaved = limit, alpha, shift, interleaved
        # Keras would round `weight` to the layer's dtype.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True

    def build(self, inputs_shape: Any, index_shape: Any = None, weight_shape: Any = None) -> None:
        columns = inputs_shape[-1]
        shapes = (columns, 2 * self.units), (self.units, columns)
        for name, shape in zip(_WEIGHTS, shapes, strict=True):
            weight = self.add_weight(
                name=name, shape=(self.num_experts, *shape), initializer=_SideBySide(self.kernel_initializer)
            )
            setattr(self, name, weight)
            bias = None
            if self.use_bias:
                bias = self.add_weight(
                    name=f"{name}_bias", shape=(self.num_experts, shape[-1]), initializer=self.bias_initializer
                )
            setattr(self, f"{name}_bias", bias)

    def call(self, inputs: Any, index: Any, weight: Any) -> Any:
        inputs = self.dtype_policy.convert_input(inputs, self.autocast, self.input_dtype)
        index, weight = keras.ops.convert_to_tensor(index), self._of_router(weight, inputs)
        name = activations.fused_name(self.activation)
        assert name is not None  # checked by __init__
        given = {x: getattr(self, x) for w in _WEIGHTS for x in (w, f"{w}_bias")}
        of = {x: None if v is None else keras.ops.convert_to_tensor(v) for x, v in given.items()}
        return fo.experts(
            inputs,
            index,
            weight,
            of["gate_up"],
            of["down"],
            activation=name,
            gate_up_bias=of["gate_up_bias"],
            down_bias=of["down_bias"],
            transpose_weight=False,
            interleaved=self.interleaved,
            limit=self.limit,
            alpha=self.alpha,
            shift=self.shift,
        )

    def _of_router(self, weight: Any, inputs: Any) -> Any:
        """The router's weights as the kernel takes them beside the inputs: float32 beside 16 bits."""
        weight, own = keras.ops.convert_to_tensor(weight), keras.backend.standardize_dtype(inputs.dtype)
        found, wide = keras.backend.standardize_dtype(weight.dtype), "float64" if own == "float64" else "float32"
        return keras.ops.cast(weight, wide) if self.autocast and found not in (own, wide) else weight

    def compute_output_shape(self, inputs_shape: Any, index_shape: Any = None, weight_shape: Any = None) -> Any:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            **{x: getattr(self, x) for x in ("num_experts", "units", "use_bias")},
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            **{x: getattr(self, x) for x in ("limit", "alpha", "shift", "interleaved")},
        }


class _SideBySide(keras.initializers.Initializer):
    """Initializes the matrices of all experts as columns of one: initializers would count E among the inputs."""

    def __init__(self, initializer: Any) -> None:
        self.initializer = initializer

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        experts, columns, units = shape
        kernel = keras.ops.reshape(self.initializer((columns, experts * units), dtype=dtype), (columns, experts, units))
        return keras.ops.transpose(kernel, (1, 0, 2))
