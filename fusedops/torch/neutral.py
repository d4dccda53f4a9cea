"""The functions of tensors that gradient formulas use, for PyTorch: `fusedops/gradients/__init__.py` lists them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def _compute(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.to(torch.float32)


def _where(condition: Tensor, x: Tensor) -> Tensor:
    return torch.where(condition, x, 0.0)


def _one_hot(labels: Tensor, like: Tensor) -> Tensor:
    return labels.unsqueeze(-1) == torch.arange(like.shape[-1], dtype=labels.dtype, device=labels.device)


def _vjp(function: Callable[..., Any], inputs: Sequence[Tensor], upstream: Any) -> Sequence[Tensor]:
    _, pull_back = torch.func.vjp(function, *inputs)
    return pull_back(upstream)


# Functions, not methods such as Tensor.dim: compiled autograd of torch 2.10 does not take those from a table.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cast": lambda x, like: x.to(like.dtype),
    "compute": _compute,
    "constant": lambda x: x.detach(),
    "erf": torch.erf,
    "expand_last": lambda x: x.unsqueeze(-1),
    "first": lambda x: x.squeeze(-1),
    "halves": lambda x: torch.chunk(x, 2, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "mean_last": lambda x: x.mean(-1, keepdim=True),
    "multiply": torch.mul,
    "one_hot": _one_hot,
    "rank": lambda x: x.dim(),
    "reshape_rows": lambda x: x.reshape(math.prod(x.shape[:-1]), x.shape[-1]),
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "sum": torch.sum,
    "sum_last": lambda x: x.sum(-1, keepdim=True),
    "tanh": torch.tanh,
    "transpose": lambda x: x.mT,
    "unequal": torch.ne,
    "vjp": _vjp,
    "where": _where,
}
