"""The functions of tensors that gradient formulas use, for PyTorch: `fusedops/gradients/__init__.py` lists them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedops.torch import internals


def _compute(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.to(torch.float32)


def _where(condition: Tensor, x: Tensor) -> Tensor:
    return torch.where(condition, x, 0.0)


def _one_hot(labels: Tensor, like: Tensor) -> Tensor:
    classes = labels.new_ones(like.shape[-1]).cumsum(0) - 1  # of labels' class, which may be DTensor
    return labels.unsqueeze(-1) == classes


def _columns(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-1], dtype=torch.int32, device=x.device)


def _diagonal(x: Tensor, first: Tensor | None) -> Tensor:
    rows = torch.arange(x.shape[-2], dtype=torch.int32, device=x.device).unsqueeze(-1)
    return rows + (x.shape[-1] - x.shape[-2] if first is None else first[..., None, None, None])


def _beside_sinks(scores: Tensor, masks: Sequence[Tensor], sinks: Tensor) -> tuple[Tensor, list[Tensor]]:
    column = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    visible = functools.reduce(torch.logical_and, masks, torch.ones_like(scores, dtype=torch.bool))
    return torch.cat([scores, column], -1), [torch.nn.functional.pad(visible, (0, 1), value=True)]


def _packed(x: Tensor, offsets_q: Tensor, offsets_k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = torch.arange(x.shape[-2], dtype=torch.int32, device=x.device)
    query_segment = torch.searchsorted(offsets_q[1:], rows, right=True)
    key_segment = torch.searchsorted(offsets_k[1:], _columns(x), right=True)
    further = torch.nn.functional.pad((offsets_k - offsets_q)[1:], (0, 1))  # padded for rows after the last sequence
    diagonal = rows + further[query_segment]
    return query_segment.unsqueeze(-1), key_segment, diagonal.unsqueeze(-1)


def _probabilities(scores: Tensor, masks: Sequence[Tensor]) -> Tensor:
    if not masks:
        return torch.softmax(scores, -1)
    visible, lowered = _lowered(scores, masks)
    return torch.where(visible, torch.softmax(lowered, -1), 0.0)


def _log_sum_exp(scores: Tensor, masks: Sequence[Tensor]) -> Tensor:
    if not masks:
        return torch.logsumexp(scores, -1)
    visible, lowered = _lowered(scores, masks)
    return torch.where(visible.any(-1), torch.logsumexp(lowered, -1), -torch.inf)


def _lowered(scores: Tensor, masks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The mask, and scores with the least number where it is False: with infinity, a row without any would be NaN."""
    visible = functools.reduce(torch.logical_and, masks)
    return visible, torch.where(visible, scores, torch.finfo(scores.dtype).min)


def vjp(function: Callable[..., Any], inputs: Sequence[Tensor], upstream: Any) -> Sequence[Tensor]:
    if not internals.is_within_kernel_of_torch_func():
        _, pull_back = torch.func.vjp(function, *inputs)
        return pull_back(upstream)
    # Inside a kernel that torch.func has called, no transform can begin. Aliases keep the graph and the tangents of the
    # inputs, and separate this use of an input from others.
    differentiable_again = torch.is_grad_enabled()
    with torch.enable_grad(), internals.enable_inplace_requires_grad(True):
        aliases = [x.view_as(x) for x in inputs]
        for alias in aliases:
            if not alias.requires_grad:
                alias.requires_grad_()
        outputs = function(*aliases)
    outputs, upstream = ((x,) if isinstance(x, Tensor) else x for x in (outputs, upstream))
    flowing = [(y, dy) for y, dy in zip(outputs, upstream, strict=True) if y.requires_grad]
    if not flowing:
        return [torch.zeros_like(x) for x in inputs]
    return torch.autograd.grad(
        [y for y, _ in flowing],
        aliases,
        [dy for _, dy in flowing],
        create_graph=differentiable_again,
        allow_unused=True,
        materialize_grads=True,
    )


# Functions, not methods such as Tensor.dim: compiled autograd of torch 2.10 does not support methods in a table.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "absolute": torch.abs,
    "alternating": lambda x: (x[..., ::2], x[..., 1::2]),
    "diagonal": _diagonal,
    "beside_sinks": _beside_sinks,
    "broadcast": lambda x, like: x.expand(like.shape),
    "but_last": lambda x: x[..., :-1],
    "cast": lambda x, like: x.to(like.dtype),
    "clamp": torch.clamp,
    "columns": _columns,
    "compute": _compute,
    "constant": lambda x: x.detach(),
    "erf": torch.erf,
    "exchange_heads": lambda x: x.transpose(-3, -2),
    "expand_last": lambda x: x.unsqueeze(-1),
    "features": lambda x: x.shape[-1],
    "first": lambda x: x.squeeze(-1),
    "halves": lambda x: torch.chunk(x, 2, -1),
    "log": torch.log,
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "log_sum_exp": _log_sum_exp,
    "mean_last": lambda x: x.mean(-1, keepdim=True),
    "multiply": torch.mul,
    "one_hot": _one_hot,
    "packed": _packed,
    "probabilities": _probabilities,
    "product": torch.matmul,
    "repeat_heads": lambda x, like: x.repeat_interleave(like.shape[-3] // max(x.shape[-3], 1), -3),
    "repeat_rows": lambda x, like: x.expand(like.shape[0], *x.shape),
    "rows": lambda x: x.reshape(math.prod(x.shape[:-1]), x.shape[-1]),
    "rows_as": lambda x, like: x.reshape(*like.shape[:-1], x.shape[-1]),
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "sum": torch.sum,
    "sum_last": lambda x: x.sum(-1, keepdim=True),
    "tanh": torch.tanh,
    "transpose_last": lambda x: x.transpose(-2, -1),
    "unequal": torch.ne,
    "vjp": vjp,
    "where": _where,
}
