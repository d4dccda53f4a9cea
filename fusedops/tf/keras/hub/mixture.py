"""The blocks of mixtures of experts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

import keras
import tensorflow as tf

from fusedops.keras_layers.visibility import keras_mask
from fusedops.tf.keras.hub import made
from fusedops.tf.keras.hub.experts import FusedExperts
from fusedops.tf.keras.hub.layer import HubLayer


def rows_of(x: tf.Tensor) -> tf.Tensor:
    """[B, T, columns] as [B · T, columns]."""
    return keras.ops.reshape(x, (-1, x.shape[-1]))


class SparseBlock(HubLayer):
    """A router and experts; in some families also an expert that all tokens share, with a gate of one column."""

    router: ClassVar[str] = "_sparse_feedforward_gate_dense"  # names of attributes
    shared: ClassVar[tuple[str, str]] = ("shared_expert_dense", "shared_expert_gate_dense")
    needs: ClassVar[tuple[str, ...]] = (router, "expert_bank", "num_experts", "top_k")
    arguments = 3
    balancing_loss: ClassVar[Callable[..., tf.Tensor]]  # KerasHub's function

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        return {"balancing_loss": staticmethod(sys.modules[kind.__module__].compute_load_balancing_loss)}

    def fused_call(self, given: Any) -> Any:
        mask = keras_mask(given.attention_mask) if given.training else None  # only the loss needs it
        has_jitter = bool(given.training) and getattr(self, "router_jitter_noise", 0) > 0
        if not isinstance(self.expert_bank, FusedExperts) or has_jitter:
            return super().call(given.hidden_states, mask, given.training)
        x = rows_of(given.hidden_states)
        logits = getattr(self, self.router)(x)
        weight, index = keras.ops.top_k(keras.ops.softmax(logits, axis=-1), k=self.top_k)
        if getattr(self, "norm_top_k_prob", True):
            weight = weight / keras.ops.sum(weight, axis=-1, keepdims=True)
        y = self.expert_bank.weighted(x, index, weight)
        if hasattr(self, self.shared[0]):
            expert, gate = (getattr(self, name) for name in self.shared)
            y = y + expert(x) * keras.ops.sigmoid(gate(x))
        if given.training:
            loss = self.balancing_loss(
                router_logits=logits, num_experts=self.num_experts, top_k=self.top_k, attention_mask=mask
            )
            self.add_loss(self._loss_weight() * loss)
        return keras.ops.reshape(y, keras.ops.shape(given.hidden_states)), logits

    def _loss_weight(self) -> float:
        names = ("router_aux_loss_coefficient", "router_aux_loss_coef")
        return next(getattr(self, name) for name in names if hasattr(self, name))


__getattr__ = made.counterparts("mixture", SparseBlock)
