"""The gate of a feed-forward layer whose projections are layers: both products in one pass on a GPU."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import fusedops.tf as fo
from fusedops.functions.common import Activation
from fusedops.keras_layers import activations
from fusedops.keras_layers.dense import Dense, EinsumDense
from fusedops.tf.keras_backend import has_gpu

_OF_DENSE = "btd,df->btf"  # the equation of an EinsumDense that is equivalent to a Dense


def gated(gate: Any, up: Any, x: tf.Tensor, activation: Any) -> tf.Tensor:
    """activation(gate(x)) · up(x): `gated_product` if the kernel has the activation."""
    name = activations.fused_name(activation)
    if name is None:
        y = up(x)
        wide = tf.float32 if y.dtype.size == 2 else y.dtype  # most of KerasHub's blocks compute activations in it
        return tf.cast(activation(tf.cast(gate(x), wide)), y.dtype) * y
    return gated_product(gate, up, x, name)


def gated_product(gate: Any, up: Any, x: tf.Tensor, activation: Activation) -> tf.Tensor:
    """act(gate(x)) · up(x), with both products fused if the kernel takes them and no layer needs its own call."""
    y = _both(gate, up, x, activation) if _activation(gate) == "identity" else None
    return fo.gated_act(gate(x), up(x), activation) if y is None else y


def activated_product(gate: Any, up: Any, x: tf.Tensor) -> tf.Tensor:
    """gate(x) · up(x), likewise, for a gate that contains its activation."""
    activation = _activation(gate)
    y = _both(gate, up, x, activation) if activation else None
    return gate(x) * up(x) if y is None else y


def _activation(dense: Any) -> Activation | None:
    return activations.fused_name(getattr(dense, "activation", None))


def _both(gate: Any, up: Any, x: tf.Tensor, activation: Activation) -> tf.Tensor | None:
    if not (has_gpu() and _is_plain(gate, x) and _is_plain(up, x)) or _activation(up) != "identity":
        return None
    of_gate, of_up = map(keras.ops.convert_to_tensor, (gate.kernel, up.kernel))
    if of_gate.shape != of_up.shape or not of_gate.dtype == of_up.dtype == x.dtype:
        return None
    biases = (gate.bias, up.bias)
    gate_bias, up_bias = (None if bias is None else keras.ops.convert_to_tensor(bias) for bias in biases)
    return fo.gated_linear(x, of_gate, of_up, gate_bias, up_bias, activation, transpose_weight=False)


def _is_plain(dense: Any, x: tf.Tensor) -> bool:
    """True if the layer is a product, a bias and an activation: no LoRA, quantization, loss, or replaced call."""
    if type(dense) in (keras.layers.EinsumDense, EinsumDense):
        if dense.equation != _OF_DENSE or dense.bias_axes is not None:
            return False
    elif type(dense) not in (keras.layers.Dense, Dense):
        return False
    return (
        isinstance(x, tf.Tensor)
        and dense.built
        and dense.compute_dtype == x.dtype.name
        and not (dense.lora_enabled or dense.quantization_mode or dense.activity_regularizer or dense._remat_mode)
        and "call" not in vars(dense)
    )
