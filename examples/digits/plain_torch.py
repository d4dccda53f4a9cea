"""PyTorch's own operators under fusedops' names: what a network is made of without fusedops."""

from __future__ import annotations

from collections.abc import Sequence

import torch

add = torch.add
matmul = torch.matmul
relu = torch.relu
scale = torch.mul


def axpby(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a * x + b


def polynomial_activation(x: torch.Tensor, coefficients: Sequence[float]) -> torch.Tensor:
    *rest, y = coefficients
    for coefficient in reversed(rest):
        y = y * x + coefficient
    return y
