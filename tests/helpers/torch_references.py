"""References for the layers that torch.nn lacks: layers composed of torch's own, or of the plain formula."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class RMSNorm(nn.RMSNorm):
    def __init__(self, *args: Any, weight_offset: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.weight_offset = weight_offset

    def forward(self, x):
        weight = None if self.weight is None else self.weight + self.weight_offset
        return functional.rms_norm(x, self.normalized_shape, weight, self.eps)


class _Add:
    def forward(self, x, residual):
        s = x + residual
        return super().forward(s), s


class AddRMSNorm(_Add, RMSNorm):
    pass


class AddLayerNorm(_Add, nn.LayerNorm):
    pass


class Softmax(nn.Softmax):
    """Softmax over the unmasked elements; rows without any give zeros."""

    def __init__(self, dim: int | None = None, scale: float = 1.0, causal: bool = False) -> None:
        super().__init__(dim)
        self.scale, self.causal = scale, causal

    def forward(self, x, mask=None):
        visible = torch.ones(x.shape, dtype=torch.bool, device=x.device) if mask is None else mask.expand(x.shape)
        if self.causal:
            visible = visible.tril(x.shape[-1] - x.shape[-2])
        weights = (x * self.scale).exp() * visible
        total = weights.sum(self.dim, keepdim=True)
        return weights / torch.where(total == 0, 1, total)


class SwiGLU(nn.Module):
    def __init__(self, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.activation = activation or nn.SiLU()

    def forward(self, gate, up=None):
        if up is None:
            gate, up = gate.chunk(2, -1)
        return self.activation(gate) * up


class GEGLU(SwiGLU):
    def __init__(self, approximate: str = "none") -> None:
        super().__init__(nn.GELU(approximate))


class BiasGELU(nn.Module):
    def __init__(self, num_features: int, approximate: str = "none", **kwargs: Any) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(num_features, **kwargs))
        self.approximate = approximate

    def forward(self, x):
        return functional.gelu(x + self.bias, approximate=self.approximate)


ACTIVATIONS = {"gelu": functional.gelu, "gelu_tanh": nn.GELU("tanh"), "silu": functional.silu}


class Linear(nn.Linear):
    def __init__(self, *args: Any, activation: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.activation = activation

    def forward(self, x):
        return ACTIVATIONS[self.activation](super().forward(x))


class GatedLinear(nn.Module):
    def __init__(self, columns, units, bias=False, activation="silu", **kwargs: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(columns, units, bias, **kwargs) for _ in range(2))
        self.activation = activation

    def forward(self, x):
        return ACTIVATIONS[self.activation](self.gate_proj(x)) * self.up_proj(x)


class Experts(nn.Module):
    """Every token goes through every expert, whose weight is 0 if it is none of the token's."""

    def __init__(self, experts, columns, units, bias=False, limit=0.0, alpha=1.0, shift=0.0, interleaved=False, **rest):
        super().__init__()
        self.limit, self.alpha, self.shift, self.interleaved = limit, alpha, shift, interleaved
        shapes = {"gate_up_proj": (2 * units, columns), "down_proj": (columns, units)}
        if bias:
            shapes |= {"gate_up_proj_bias": (2 * units,), "down_proj_bias": (columns,)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(experts, *shape, **rest)))
        self.has_bias = bias

    def forward(self, x, index, weight):
        z = torch.einsum("...c,egc->...eg", x, self.gate_up_proj)
        z = z + self.gate_up_proj_bias if self.has_bias else z
        gate, up = (z[..., ::2], z[..., 1::2]) if self.interleaved else z.chunk(2, -1)
        if self.limit:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        y = torch.einsum(
            "...eu,ecu->...ec", gate * torch.sigmoid(self.alpha * gate) * (up + self.shift), self.down_proj
        )
        y = y + self.down_proj_bias if self.has_bias else y
        of_expert = index[..., None] == torch.arange(len(self.down_proj), device=x.device)
        return torch.einsum("...k,...ke,...ec->...c", weight, of_expert.to(x.dtype), y)


class CrossEntropyLoss(nn.CrossEntropyLoss):
    def __init__(self, z_loss=0.0, **options: Any) -> None:
        super().__init__(**options)
        self.z_loss = z_loss

    def forward(self, logits, target):
        rows = logits.movedim(1, -1) if logits.dim() > 1 else logits
        counts = target != self.ignore_index
        terms = self.z_loss * rows.logsumexp(-1) ** 2 * counts
        if self.reduction != "none":
            terms = terms.sum() / (counts.sum() if self.reduction == "mean" else 1)
        return super().forward(logits, target) + terms


class LinearCrossEntropyLoss(nn.Module):
    def __init__(self, columns, classes, bias=False, device=None, dtype=None, softcap=0.0, **options: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(columns, classes, bias, device, dtype)
        self.softcap, self.loss = softcap, CrossEntropyLoss(**options)

    def forward(self, x, target):
        logits = self.linear(x)
        if self.softcap:
            logits = self.softcap * (logits / self.softcap).tanh()
        return self.loss(logits.movedim(-1, 1), target)


class RotaryEmbedding(nn.Module):
    """Pairs of features as complex numbers, rotated by e^(i·angle), in float64."""

    def __init__(self, dim, max_seq_len=4096, base=10000.0, *, interleaved=False, seq_dim=-3, **kwargs: Any) -> None:
        super().__init__()
        self.dim, self.base, self.interleaved, self.seq_dim = dim, base, interleaved, seq_dim

    def forward(self, x, positions=None):
        turned, rest = x.double().split([self.dim, x.shape[-1] - self.dim], -1)
        pairs = self.dim // 2
        shape = (pairs, 2) if self.interleaved else (2, pairs)
        turned = turned.unflatten(-1, shape)
        if not self.interleaved:
            turned = turned.transpose(-1, -2)
        if positions is None:
            positions = torch.arange(x.shape[self.seq_dim], device=x.device)
        frequencies = torch.tensor([self.base ** (-i / pairs) for i in range(pairs)], dtype=torch.float64)
        angles = positions[..., None] * frequencies.to(x.device)
        if positions.dim() == 2:  # of each batch: broadcast over the dimensions between batch and positions
            angles = angles[(slice(None), *[None] * (x.dim() + self.seq_dim - 1))]
        if self.seq_dim == -3:
            angles = angles.unsqueeze(-2)
        turned = torch.view_as_complex(turned.contiguous()) * torch.polar(torch.ones_like(angles), angles)
        turned = torch.view_as_real(turned)
        if not self.interleaved:
            turned = turned.transpose(-1, -2)
        return torch.cat([turned.flatten(-2), rest], -1).to(x.dtype)
