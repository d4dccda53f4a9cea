"""The formulas over PyTorch's functions, and PyTorch's own operators where it has some."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F

from benchmarks.operators.formulas import formulas
from benchmarks.operators.layouts import Function


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.element_size() == 2 else x


FORMULAS = formulas(
    SimpleNamespace(
        relu=torch.relu,
        rsqrt=torch.rsqrt,
        tanh=torch.tanh,
        sigmoid=torch.sigmoid,
        mean=lambda x: x.mean(-1, keepdim=True),
        softmax=lambda x: torch.softmax(x, -1),
        cross_entropy=F.cross_entropy,
        join=lambda a, b: torch.cat((a, b), -1),
        wide=_wide,
        like=lambda y, x: y.to(x.dtype),
    )
)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, 1e-6)


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def _add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return _rms_norm(total, weight), total


def _add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return _layer_norm(total, weight, bias), total


def _rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


# What runs eagerly; the other operators are plain formulas here as well.
EAGER: dict[str, Function] = {
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "add_rms_norm": _add_rms_norm,
    "add_layer_norm": _add_layer_norm,
    "softmax": lambda x: F.softmax(x, -1),
    "cross_entropy": F.cross_entropy,
    "bias_act": lambda x, bias: F.gelu(x + bias, approximate="tanh"),
    "swiglu": lambda gate, up: F.silu(gate) * up,
    "rope": _rope,
}
