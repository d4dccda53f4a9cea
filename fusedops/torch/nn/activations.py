"""Activations, with what is multiplied or added beside them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.types import Device

import fusedops.torch as fo
from fusedops.functions.common import Approximation
from fusedops.torch.nn.layer import FusedLayer, joined, options


def _checked(layer: str, approximate: Approximation) -> Approximation:
    if approximate not in ("none", "tanh"):
        raise ValueError(f"fusedops.torch.nn.{layer}: approximate must be 'none' or 'tanh'; got {approximate!r}")
    return approximate


class SwiGLU(FusedLayer, nn.Module):
    """silu(gate) · up, without parameters: `fusedops.torch.swiglu`.

    Called as `layer(gate, up)`, two tensors of one shape, or `layer(gate)` with both in one, [..., 2D]: the first half
    of the last dimension is the gate.

    Raises:
        RuntimeError: a shape or dtype is not one that the operator takes.

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        return fo.swiglu(gate, up)


class GEGLU(FusedLayer, nn.Module):
    """gelu(gate) · up, without parameters: `fusedops.torch.geglu`.

    Called as `layer(gate, up)`, two tensors of one shape, or `layer(gate)` with both in one, [..., 2D]: the first half
    of the last dimension is the gate.

    Args:
        approximate: "none" or "tanh", as of `torch.nn.GELU`.

    Raises:
        RuntimeError: a shape or dtype is not one that the operator takes.
        ValueError: `approximate` is neither.

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """

    def __init__(self, approximate: Approximation = "none") -> None:
        super().__init__()
        self.approximate = _checked("GEGLU", approximate)

    def extra_repr(self) -> str:
        return options(self, approximate="none")

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        return fo.geglu(gate, up, approximate=self.approximate)


class BiasGELU(FusedLayer, nn.Module):
    """gelu(x + bias): `fusedops.torch.bias_act`, for a linear layer that has no bias of its own.

    Args:
        num_features: the size of the last dimension.
        approximate: "none" or "tanh", as of `torch.nn.GELU`.
        device, dtype: of the bias.

    Parameters:
        bias: [num_features], zeros after `reset_parameters`.

    Input and output: [..., num_features], float64, float32, float16 or bfloat16. The bias has x's dtype, or float32
    beside a 16-bit x. 16-bit inputs are computed in float32 and rounded once.

    Raises:
        RuntimeError: a shape or dtype is not as above.
        ValueError: `approximate` is neither.

    Source: Hendrycks and Gimpel, "Gaussian error linear units (GELUs)", 2016.
    """

    def __init__(
        self,
        num_features: int,
        approximate: Approximation = "none",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.approximate = _checked("BiasGELU", approximate)
        self.bias = nn.Parameter(torch.empty(num_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        return joined(str(self.num_features), options(self, approximate="none"))

    def forward(self, x: Tensor) -> Tensor:
        return fo.bias_act(x, self.bias, "gelu_tanh" if self.approximate == "tanh" else "gelu")
