"""The activation functions that the kernels have."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from fusedops.functions.common import Activation
from fusedops.torch.conversion.hf.internals import activations

# transformers has many ways to write one formula.
_NAMES: dict[str, Activation] = {
    "AccurateGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "LinearActivation": "identity",
    "NewGELUActivation": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "SiLUActivation": "silu",
}
# What `fusedops.torch.bias_act` and `gated_act` call them.
_FUSED: dict[Any, Activation] = {
    torch.nn.Identity: "identity",
    torch.nn.ReLU: "relu",
    torch.nn.SiLU: "silu",
    torch.nn.Sigmoid: "sigmoid",
    torch.nn.Tanh: "tanh",
    functional.gelu: "gelu",
    functional.relu: "relu",
    functional.silu: "silu",
    torch.sigmoid: "sigmoid",
    torch.tanh: "tanh",
    **{getattr(activations, kind): name for kind, name in _NAMES.items() if hasattr(activations, kind)},
}


def fused_name(activation: Any) -> Activation | None:
    """The kernels' name for an activation function or module; None if they do not have it."""
    if not isinstance(activation, torch.nn.Module):
        return _FUSED.get(activation)
    if type(activation) is torch.nn.GELU:
        return "gelu_tanh" if activation.approximate == "tanh" else "gelu"
    return _FUSED.get(type(activation))


def unfused_activation(activation: Any) -> str | None:
    """The reason why a module with this activation is kept, if it is."""
    name = getattr(activation, "__name__", None) or type(activation).__name__
    return None if fused_name(activation) else f"activation {name} is not among those of the kernel"
