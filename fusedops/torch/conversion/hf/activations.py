"""The activation functions that the kernels support."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, ClassVar

import torch
from torch.nn import functional

import fusedops.torch as fo
from fusedops.functions.common import Activation
from fusedops.torch.conversion.hf.layer import HFLayer
from fusedops.torch.internals import is_watched
from fusedops.torch.nn.layer import unfused_pass

# transformers has several classes for one formula.
_TRANSFORMERS_ACTIVATIONS: dict[str, Activation] = {
    "AccurateGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "LinearActivation": "identity",
    "NewGELUActivation": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "SiLUActivation": "silu",
}
# Names of activations in `fusedops.torch.bias_act` and `gated_act`.
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
    torch.nn.functional.sigmoid: "sigmoid",
    torch.nn.functional.tanh: "tanh",
}


def fused_name(activation: Any) -> Activation | None:
    """The kernels' name for an activation function or module; None if it is not supported."""
    if not isinstance(activation, torch.nn.Module):
        return _FUSED.get(activation) if isinstance(activation, Hashable) else None
    kind = type(activation)
    if kind is torch.nn.GELU:
        return "gelu_tanh" if activation.approximate == "tanh" else "gelu"
    return _TRANSFORMERS_ACTIVATIONS.get(kind.__name__) if _is_of_transformers(kind) else _FUSED.get(kind)


def is_activation(thing: Any) -> bool:
    """True for any activation, supported or not."""
    if not isinstance(thing, torch.nn.Module):
        return callable(thing)
    kind = type(thing)
    return kind.__module__ == "torch.nn.modules.activation" or kind is torch.nn.Identity or _is_of_transformers(kind)


def must_call(activation: Any) -> bool:
    """True if the activation is a module that must be called, since it has hooks."""
    return isinstance(activation, torch.nn.Module) and is_watched(activation)


def _is_of_transformers(kind: type) -> bool:
    return kind.__module__ == "transformers.activations"


def unfused_activation(activation: Any) -> str | None:
    """The reason to skip a module with this activation, or None."""
    name = getattr(activation, "__name__", None) or type(activation).__name__
    return None if fused_name(activation) else f"activation {name} is not among those of the kernel"


class QuickGELU(HFLayer):
    """x · sigmoid(1.702 x), in one pass."""

    fused: ClassVar[Callable[..., torch.Tensor]]

    @classmethod
    def members(cls, kind: type) -> dict[str, Any]:
        return {"fused": staticmethod(fo.elementwise("x * sigmoid(1.702 * x)", name="quick_gelu"))}

    def why_not(self, *inputs: Any) -> str | None:
        return unfused_pass(inputs[0]) if inputs else super().why_not()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.why_not(x):
            return self.original.forward(self, x)  # type: ignore[attr-defined]
        return type(self).fused(x)
