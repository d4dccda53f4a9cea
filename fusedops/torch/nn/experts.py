"""The experts of a mixture."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.types import Device

import fusedops.torch as fo
from fusedops.functions.common import Activation
from fusedops.torch.nn.layer import FusedLayer, options, unfused_input
from fusedops.torch.nn.linear import TORCH_ACTIVATIONS, checked_activation, unfused_product


class Experts(FusedLayer, nn.Module):
    """For every token, the weighted sum of the gated feed-forward layers that a router chose: `fusedops.torch.experts`.

    The parameters have the names and shapes of those in transformers' mixtures.

    Args:
        num_experts: E.
        in_features: columns of x and of the result.
        hidden_features: F, the gated values of an expert.
        bias: True if both projections have a bias.
        activation: as in `Linear`.
        device, dtype: of the parameters.
        limit, alpha, shift, interleaved: as in `fusedops.torch.experts`.

    Parameters:
        gate_up_proj: [E, 2F, in_features], initialized as the weight of a `torch.nn.Linear` for each expert.
        down_proj: [E, in_features, F], likewise.
        gate_up_proj_bias, down_proj_bias: [E, 2F] and [E, in_features], with `bias=True`.

    Call arguments:
        x: [..., in_features], float64, float32, float16 or bfloat16, of the parameters' dtype. Autocast is as in
            `Linear`.
        index: int32 or int64 [..., K], the experts of each token. One outside of [0, E) contributes nothing.
        weight: [..., K], of x's dtype or float32.

    Returns:
        [..., in_features], of x's dtype, or of autocast's.

    Raises:
        RuntimeError: an argument has the wrong shape or dtype.
        ValueError: `activation` is not one of those of `Linear`.

    torch's own code computes the products where it does in `Linear`.

    Example:
        >>> layer = fnn.Experts(2, 1, 1, activation="relu")
        >>> _ = torch.nn.init.ones_(layer.gate_up_proj), torch.nn.init.ones_(layer.down_proj)
        >>> layer(torch.tensor([[2.0]]), torch.tensor([[0, 1]]), torch.tensor([[0.5, 1.0]])).detach()
        tensor([[6.]])
    """

    gate_up_proj_bias: nn.Parameter | None
    down_proj_bias: nn.Parameter | None

    def __init__(
        self,
        num_experts: int,
        in_features: int,
        hidden_features: int,
        bias: bool = False,
        activation: Activation = "silu",
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        limit: float = 0.0,
        alpha: float = 1.0,
        shift: float = 0.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        self.activation = checked_activation("Experts", activation)
        self.limit, self.alpha, self.shift, self.interleaved = limit, alpha, shift, interleaved

        def made(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(num_experts, *shape, device=device, dtype=dtype))

        self.gate_up_proj = made(2 * hidden_features, in_features)
        self.down_proj = made(in_features, hidden_features)
        self.register_parameter("gate_up_proj_bias", made(2 * hidden_features) if bias else None)
        self.register_parameter("down_proj_bias", made(in_features) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        parts = (self.gate_up_proj, self.gate_up_proj_bias), (self.down_proj, self.down_proj_bias)
        for weight, bias in parts:
            bound = 1 / math.sqrt(max(weight.shape[-1], 1))
            for parameter in (weight, bias):
                if parameter is not None:
                    nn.init.uniform_(parameter, -bound, bound)

    def why_not(self, *inputs: Any) -> str | None:
        return unfused_input(inputs[0]) or unfused_product(inputs[0], self.gate_up_proj) if inputs else None

    def extra_repr(self) -> str:
        experts, columns, hidden = self.down_proj.shape
        rest = options(self, activation="silu", limit=0.0, alpha=1.0, shift=0.0, interleaved=False)
        has_bias = self.down_proj_bias is not None
        return ", ".join(filter(None, (f"{experts}, {columns}, {hidden}, bias={has_bias}", rest)))

    def forward(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        if self.why_not(x):
            return self.otherwise(self._of_torch, x, index, weight)
        return fo.experts(
            x,
            index,
            weight,
            self.gate_up_proj,
            self.down_proj,
            activation=self.activation,
            gate_up_bias=self.gate_up_proj_bias,
            down_bias=self.down_proj_bias,
            interleaved=self.interleaved,
            limit=self.limit,
            alpha=self.alpha,
            shift=self.shift,
        )

    def _of_torch(self, x: Tensor, index: Tensor, weight: Tensor) -> Tensor:
        """One expert after the other."""
        rows, index, weight = (v.reshape(-1, v.shape[-1]) for v in (x, index, weight))
        total: Any = rows.new_zeros(rows.shape)
        up_biases, down_biases = self.gate_up_proj_bias, self.down_proj_bias
        for expert, (gate_up, down) in enumerate(zip(self.gate_up_proj, self.down_proj, strict=True)):
            token, slot = torch.where(index == expert)
            z = functional.linear(rows[token], gate_up, None if up_biases is None else up_biases[expert])
            h = self._gated(z)
            y = functional.linear(h, down, None if down_biases is None else down_biases[expert])
            y = y * weight[token, slot, None]
            total = total.to(y.dtype).index_add(0, token, y)
        return total.to(z.dtype if len(self.down_proj) else x.dtype).reshape(x.shape)

    def _gated(self, z: Tensor) -> Tensor:
        gate, up = (z[..., ::2], z[..., 1::2]) if self.interleaved else z.chunk(2, -1)
        if self.limit:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return TORCH_ACTIVATIONS[self.activation](self.alpha * gate) / self.alpha * (up + self.shift)
