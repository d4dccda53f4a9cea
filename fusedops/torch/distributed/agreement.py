"""Comparison of a call among the processes of a group: if they differ, collectives in it would not return."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def description(x: Any) -> str:
    if not isinstance(x, Tensor):
        return type(x).__name__
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"


def differing_calls(group: Any, device: torch.device, call: Any) -> list[Any] | None:
    """The calls of all processes, by rank; None if they are equal. `call` describes this process's one.

    The processes exchange a digest of `repr(call)`, for which the host waits.
    """
    digest = int.from_bytes(hashlib.blake2b(repr(call).encode(), digest_size=7).digest(), "big")
    extremes = torch.tensor([digest, -digest], device=device)
    dist.all_reduce(extremes, dist.ReduceOp.MAX, group)
    if not extremes.sum():  # the maximum is the minimum
        return None
    calls: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(calls, call, group)
    return calls
