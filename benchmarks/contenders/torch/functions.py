"""What formulas are written over, in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.operators.record import Function


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.element_size() == 2 else x


ROWS = 16384  # more queries are taken a part at a time, or their scores would fill a GPU


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Of [batch, positions, heads, features]; heads of k and v may be shared by several of q."""
    positions = q.shape[1]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))

    def part(first: int, last: int) -> torch.Tensor:
        scores = q[:, :, first:last] @ k.mT * q.shape[-1] ** -0.5
        if causal:
            kept = torch.ones(last - first, positions, dtype=torch.bool, device=q.device).tril(first)
            scores = scores.masked_fill(~kept, -torch.inf)
        return torch.softmax(_wide(scores), -1).to(v.dtype) @ v

    step = positions if positions <= ROWS else 2048
    parts = [part(first, min(first + step, positions)) for first in range(0, positions, step)]
    return torch.cat(parts, 2).transpose(1, 2)


FUNCTIONS = {
    "attention": _attention,
    "dropout": F.dropout,
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
    "largest": lambda x: x.abs().amax(-1, keepdim=True),
    "float8": lambda x: x if x.dtype == torch.float64 else x.to(torch.float8_e4m3fn),
}


def matmul(transpose_a: bool, transpose_b: bool) -> Function:
    return lambda a, b: torch.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)
