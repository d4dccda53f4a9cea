"""Calls that type checkers must accept, and their types; they are run as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from typing_extensions import assert_type

import fusedops.tf as fo
import fusedops.tf.keras as fk
from fusedops.tf import layer_norm

x, weight = tf.ones([2, 4]), tf.Variable(tf.ones([4]))
cos = sin = tf.ones([2, 2])

# functions
assert_type(fo.rms_norm(x), tf.Tensor)
assert_type(fo.rms_norm(x, weight, eps=1e-5, weight_offset=1, name="norm"), tf.Tensor)
assert_type(fo.add_rms_norm(x, residual=x, name=None), tuple[tf.Tensor, tf.Tensor])
assert_type(layer_norm(np.ones((2, 4), np.float32), bias=weight), tf.Tensor)
assert_type(fo.axpby(2, x, x), tf.Tensor)
assert_type(fo.scale(x, tf.ones([1])), tf.Tensor)
assert_type(fo.bias_act(x, weight, "gelu_tanh"), tf.Tensor)
assert_type(fo.softmax(x, mask=np.ones((2, 4), bool), causal=True), tf.Tensor)
assert_type(fo.cross_entropy(x, tf.constant([0, 1]), reduction="none"), tf.Tensor)
assert_type(fo.rope(tf.ones([2, 1, 4]), cos, sin), tf.Tensor)
assert_type(fo.rms_norm_rope(tf.ones([2, 1, 4]), None, cos, sin), tf.Tensor)
coefficients: Sequence[float] = [1, 2.5]
assert_type(fo.polynomial_activation(x, coefficients, name="p"), tf.Tensor)

# expressions
gate = fo.elementwise("silu(g) * u + scale", inputs=["g", "u", "scale"], name="gate")
assert_type(gate.inputs, tuple[str, ...])
assert_type(gate.source + gate.derivative + gate.expression, str)
assert_type(gate(x, weight, 2), tf.Tensor | Any)
assert_type(gate(x, scale=0.5, u=np.ones(4, np.float32)), tf.Tensor | Any)
gated: tf.Tensor = gate(x, x, x)
first, second = fo.elementwise("return x + y, x")(x, 1.0)

# layers
dense = fk.Dense(4, activation=fk.activations.gelu_tanh)
y: tf.Tensor = dense(x)
assert_type(dense.why_not(x), "str | None")
assert_type(fo.keras.GatedDense(4, activation="gelu_tanh"), fk.GatedDense)

# other names
assert_type(fk.convert(dense, verbose=False), fk.Dense)
assert_type(fk.revert(dense), fk.Dense)
assert_type(fo.library_path(), str)
