"""Activations with a bias or a gate."""

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

    Call arguments:
        gate: [..., D], or [..., 2D] without `up`: the first half of the last dimension is then the gate, the second
            `up`.
        up: [..., D], of gate's dtype.

    Returns:
        A tensor of shape [..., D] and gate's dtype.

    Raises:
        RuntimeError: an argument has the wrong shape or dtype.

    Example:
        >>> fnn.SwiGLU()(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[2.1932, 7.0464]])

    Source: Shazeer, "GLU variants improve transformer", 2020.
    """

    def __init__(self) -> None:
        super().__init__()

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        return fo.swiglu(gate, up)


class GEGLU(FusedLayer, nn.Module):
    """gelu(gate) · up, without parameters: `fusedops.torch.geglu`. All else is as in `SwiGLU`.

    Args:
        approximate: "none" or "tanh", as in `torch.nn.GELU`.

    Raises:
        ValueError: `approximate` is neither of the two.

    Example:
        >>> fnn.GEGLU(approximate="tanh")(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[2.5236, 7.8184]])
    """

    def __init__(self, approximate: Approximation = "none") -> None:
        super().__init__()
        self.approximate = _checked("GEGLU", approximate)

    def extra_repr(self) -> str:
        return options(self, approximate="none")

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        return fo.geglu(gate, up, approximate=self.approximate)


class BiasGELU(FusedLayer, nn.Module):
    """gelu(x + bias): `fusedops.torch.bias_act`, for use after a linear layer without a bias.

    Args:
        num_features: the size of the last dimension.
        approximate: "none" or "tanh", as in `torch.nn.GELU`.
        device, dtype: of the bias.

    Parameters:
        bias: [num_features], initially zeros.

    Call arguments:
        x: [..., num_features], float64, float32, float16 or bfloat16, of the bias's dtype; or 16 bits beside a float32
            bias.

    Returns:
        A tensor of x's shape and dtype. 16-bit inputs are computed in float32 and rounded once.

    Raises:
        RuntimeError: an argument has the wrong shape or dtype.
        ValueError: `approximate` is neither of the two.

    Example:
        >>> fnn.BiasGELU(2)(torch.tensor([[-1.0, 1.0]])).detach()
        tensor([[-0.1587,  0.8413]])

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
