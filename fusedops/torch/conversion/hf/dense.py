"""A product, its bias and an activation: the bias and the activation in one pass."""

from __future__ import annotations

from typing import Any

import torch

import fusedops.torch as fo
from fusedops.torch.conversion.hf.activations import fused_name, unfused_activation
from fusedops.torch.conversion.hf.code import unknown_forward
from fusedops.torch.conversion.hf.internals import Conv1D
from fusedops.torch.conversion.hf.layer import HFLayer, stays_half
from fusedops.torch.internals import is_watched
from fusedops.torch.nn.layer import unfused_input


class ActivatedDense(HFLayer):
    """act(dense(x)), and then the modules that follow: `needs` names all of them, in this order."""

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        return {"computes": (cls.needs[1],)}

    def unfused(self) -> str | None:
        dense, activation = (getattr(self, name) for name in self.needs[:2])
        return unknown_forward(self.original, self.needs) or unfused_dense(dense) or unfused_activation(activation)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        dense, activation, *rest = (getattr(self, name) for name in self.needs)
        hidden_states = activated(activation, dense, hidden_states)
        for module in rest:
            hidden_states = module(hidden_states)
        return hidden_states


class GPT2MLP(ActivatedDense):
    needs = ("c_fc", "act", "c_proj", "dropout")


class PhiMLP(ActivatedDense):
    needs = ("fc1", "activation_fn", "fc2")


class BertIntermediate(ActivatedDense):
    needs = ("dense", "intermediate_act_fn")


class BertPredictionHeadTransform(ActivatedDense):
    needs = ("dense", "transform_act_fn", "LayerNorm")


def activated(activation: Any, dense: Any, x: torch.Tensor) -> torch.Tensor:
    """act(dense(x)); the kernel computes bias and activation if it can and if no hook or subclass is in the way."""
    name = fused_name(activation)
    if name is None or unfused_dense(dense) or is_watched(dense) or is_watched(activation) or unfused_input(x):
        return activation(dense(x))
    product = _product(dense, x)
    if product.dtype is not dense.bias.dtype and not stays_half(product, dense.bias):
        return activation(dense(x))
    return fo.bias_act(product, dense.bias, name)


def unfused_dense(dense: torch.nn.Module) -> str | None:
    """A subclass, or the replacement of an adapter or a quantizer, may compute something else."""
    if type(dense) not in (torch.nn.Linear, Conv1D):
        return f"its product is a {type(dense).__module__}.{type(dense).__name__}"
    return "its product has no bias" if dense.bias is None else None


def _product(dense: Any, x: torch.Tensor) -> torch.Tensor:
    """dense(x) without its bias."""
    return x @ dense.weight if type(dense) is Conv1D else torch.nn.functional.linear(x, dense.weight)
