"""The activation of a gated MLP, and its product with the other projection."""

from __future__ import annotations

from typing import Any

import torch

import fusedops.torch as fo
from fusedops.torch.conversion.hf import internals
from fusedops.torch.conversion.hf.activations import fused_name, unfused_activation
from fusedops.torch.conversion.hf.code import unknown_forward
from fusedops.torch.conversion.hf.layer import HFLayer
from fusedops.torch.internals import is_watched
from fusedops.torch.nn.layer import unfused_input


class GatedMLP(HFLayer):
    """down(act(gate(x)) · up(x)): the middle is one pass that stores nothing but its result."""

    needs = ("gate_proj", "up_proj", "down_proj", "act_fn")
    computes = ("act_fn",)

    def unfused(self) -> str | None:
        return unknown_forward(self.original, self.needs, ("down_proj",)) or unfused_activation(self.act_fn)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(gated(self.act_fn, self.gate_proj(x), self.up_proj(x)))


class PackedMLP(HFLayer):
    """down(act(gate) · up), where one product computes gate and up side by side, as in Phi-3."""

    needs = ("gate_up_proj", "down_proj", "activation_fn")
    computes = ("activation_fn",)

    def unfused(self) -> str | None:
        unknown = unknown_forward(self.original, (*self.needs, "chunk"), ("gate", "up_states"))
        return unknown or unfused_activation(self.activation_fn)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.down_proj(gated_halves(self.activation_fn, self.gate_up_proj(hidden_states)))


def gated_halves(activation: Any, packed: torch.Tensor) -> torch.Tensor:
    """act(gate) · up of the halves of the last dimension, whose gradient is then one tensor as well."""
    name = fused_name(activation)
    if name is None or unfused_input(packed) or is_watched(activation):
        gate, up = packed.chunk(2, dim=-1)
        return activation(gate) * up
    return fo.gated_act(packed, None, name)


def gated(activation: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """act(gate) · up, by the kernel if it can and if no hook or subclass is in the way."""
    name = fused_name(activation)
    if name is None or gate.dtype is not up.dtype or unfused_input(gate) or is_watched(activation):
        return activation(gate) * up
    return fo.gated_act(gate, up, name)


class GatedExperts(HFLayer):
    """The same for the experts of a mixture, whose two projections lie side by side in one tensor."""

    needs = ("act_fn", "config", "_apply_gate")
    computes = ("act_fn",)

    def unfused(self) -> str | None:
        if internals.has_own_gate(self.original):
            return "it has a gate of its own"
        if internals.are_experts_eager(self.config):
            return "experts_implementation is 'eager'"
        return unfused_activation(self.act_fn)

    def _apply_gate(self, packed: torch.Tensor) -> torch.Tensor:
        return gated_halves(self.act_fn, packed)
