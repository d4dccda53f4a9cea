"""PyTorch's functions for the formulas of operators."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.operators.record import Function


def _upcast(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.element_size() == 2 else x


MAX_QUERIES = 16384  # longer sequences are computed in chunks of queries, since their scores would fill a GPU


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    alibi: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention over [batch, positions, heads, features]; several heads of q may share one of k and v."""
    positions = q.shape[1]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))

    def chunk(first: int, last: int) -> torch.Tensor:
        scores = q[:, :, first:last] @ k.mT * q.shape[-1] ** -0.5
        if causal:
            visible = torch.ones(last - first, positions, dtype=torch.bool, device=q.device).tril(first)
            scores = scores.masked_fill(~visible, -torch.inf)
        if alibi is not None:
            place = torch.arange(positions, device=q.device)
            scores = scores - alibi[:, None, None] * (place[first:last, None] - place).abs()
        if bias is not None:
            scores = scores + bias[..., first:last, :]
        if sinks is not None:
            scores = torch.cat((scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)), -1)
        return torch.softmax(_upcast(scores), -1)[..., : k.shape[2]].to(v.dtype) @ v

    step = positions if positions <= MAX_QUERIES else 2048
    chunks = [chunk(first, min(first + step, positions)) for first in range(0, positions, step)]
    return torch.cat(chunks, 2).transpose(1, 2)


def _log_prob(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    lse = logits.logsumexp(-1)
    return logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - lse, lse


def _kl_div(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    log_p, log_q = logits.log_softmax(-1), target.log_softmax(-1)
    return F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)


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
    "kl_div": _kl_div,
    "log_prob": _log_prob,
    "join": lambda a, b: torch.cat((a, b), -1),
    "upcast": _upcast,
    "like": lambda y, x: y.to(x.dtype),
    "largest": lambda x: x.abs().amax(-1, keepdim=True),
    "float8": lambda x: x if x.dtype == torch.float64 else x.to(torch.float8_e4m3fn),
}


def matmul(transpose_a: bool, transpose_b: bool) -> Function:
    return lambda a, b: torch.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)
