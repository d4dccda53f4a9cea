"""The activation functions of Keras that the kernels have."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import keras

from fusedops.functions.common import Activation


@keras.saving.register_keras_serializable(package="fusedops")
def gelu_tanh(x: Any) -> Any:
    """Keras's gelu, approximated by tanh."""
    return keras.activations.gelu(x, approximate=True)


# Their names in `fusedops.tf.bias_act` and `gated_act`.
FUSED: dict[FunctionType, Activation] = {
    keras.activations.linear: "identity",
    keras.activations.relu: "relu",
    keras.activations.gelu: "gelu",
    gelu_tanh: "gelu_tanh",
    keras.activations.silu: "silu",
    keras.activations.sigmoid: "sigmoid",
    keras.activations.tanh: "tanh",
    keras.ops.relu: "relu",
    keras.ops.gelu: "gelu_tanh",  # approximate by default
    keras.ops.silu: "silu",
    keras.ops.sigmoid: "sigmoid",
    keras.ops.tanh: "tanh",
}


def fused_name(activation: Any) -> Activation | None:
    """The kernels' name for an activation function; None if they do not have it."""
    if isinstance(activation, FunctionType):
        return FUSED.get(activation)
    if isinstance(activation, functools.partial):
        given: tuple[Any, ...] = (activation.func, activation.args, activation.keywords.keys())
        if given == (keras.activations.gelu, (), {"approximate"}):
            return "gelu_tanh" if activation.keywords["approximate"] else "gelu"
    return None


def unfused_activation(activation: Any) -> str:
    """The reason why Keras computes a layer with this activation."""
    name = getattr(activation, "__name__", None) or type(activation).__name__
    return f"activation {name} is not among those of the kernel"


def get(activation: Any) -> Any:
    """Like `keras.activations.get`, but knows gelu_tanh."""
    return gelu_tanh if activation == "gelu_tanh" else keras.activations.get(activation)
