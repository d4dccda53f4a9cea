"""The experts of a mixture. The operator computes those that a router chose; KerasHub computes all for every token."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

import fusedops.tf as fo
from fusedops.functions.common import Activation
from fusedops.keras_layers import activations
from fusedops.tf.keras.hub import made
from fusedops.tf.keras.hub.layer import HubLayer


class FusedExperts(HubLayer):
    """The experts. A block that is ours calls `weighted`; `call` stays KerasHub's, which returns the results of all."""

    needs: ClassVar[tuple[str, ...]] = ("_expert_feedforward_gate_dense", "_expert_feedforward_output_dense")

    def why_not(self, inputs: Any = None) -> str | None:
        reason = super().why_not(inputs)
        if reason is None and self._activation() is None:
            return activations.unfused_activation(self.activation)
        return reason

    def weighted(self, x: tf.Tensor, index: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        """Σₖ weight[t, k] · (expert index[t, k])(x[t]), as [T, columns]."""
        name = self._activation()
        assert name is not None  # checked by why_not
        # Weights are cast as in a call of the layer.
        given = [None if each is None else keras.ops.cast(each, x.dtype) for each in self._weights()]
        gate_up, down, gate_up_bias, down_bias = given
        return fo.experts(
            x,
            index,
            keras.ops.cast(weight, x.dtype),
            gate_up,
            down,
            activation=name,
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
            transpose_weight=False,
            **self._gate(),
        )

    def scored(self, x: tf.Tensor, scores: tf.Tensor, count: int) -> tf.Tensor:
        """The same for scores [T, experts] of a router, which are zero except for the `count` chosen experts."""
        weight, index = keras.ops.top_k(scores, k=count)
        return self.weighted(x, index, weight)

    def _activation(self) -> Activation | None:
        return activations.fused_name(getattr(self, "activation", keras.activations.silu))

    def _weights(self) -> tuple[Any, ...]:
        """The weights and biases of both products."""
        gate, up = self._expert_feedforward_gate_dense, getattr(self, "_expert_feedforward_intermediate_dense", None)
        # Mixtral has gates and ups in two weights, which are copied into one in every call.
        gate_up = gate if up is None else keras.ops.concatenate([gate, up], axis=-1)
        return gate_up, self._expert_feedforward_output_dense, None, None

    def _gate(self) -> dict[str, Any]:
        """Further options of `fo.experts`."""
        return {}


__getattr__ = made.counterparts("experts", FusedExperts)
