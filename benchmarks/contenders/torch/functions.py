"""What formulas are written over, in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.operators.record import Function


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.element_size() == 2 else x


FUNCTIONS = {
    "relu": torch.relu,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "mean": lambda x: x.mean(-1, keepdim=True),
    "softmax": lambda x: torch.softmax(x, -1),
    "cross_entropy": F.cross_entropy,
    "join": lambda a, b: torch.cat((a, b), -1),
    "wide": _wide,
    "like": lambda y, x: y.to(x.dtype),
}


def matmul(transpose_a: bool, transpose_b: bool) -> Function:
    return lambda a, b: torch.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)
