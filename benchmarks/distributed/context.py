"""Causal attention over positions that are divided among GPUs, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

import fusedops.torch as fo
from benchmarks.cases.case import Goal
from benchmarks.distributed import Case
from benchmarks.measuring.timing import Call
from fusedops.torch.distributed import ring_attention, shard_positions

SIZES = {"cuda": (65536, 32, 8, 128), "cpu": (64, 4, 2, 16)}  # positions, heads, key heads, features


def setup(rank: int, world: int, device: str) -> dict[str, Call]:
    positions, heads, key_heads, features = SIZES[device]
    mesh = init_device_mesh(device, (world,))
    torch.manual_seed(0)  # the same inputs on all ranks
    q, k, v, dy = (
        torch.randn(1, positions, n, features, dtype=torch.bfloat16, device=device)
        for n in (heads, key_heads, key_heads, heads)
    )
    parts = [shard_positions(x, group=mesh.get_group(), load_balance=True) for x in (q, k, v, dy)]

    def ring(*inputs: Tensor) -> Tensor:
        return ring_attention(*inputs, group=mesh.get_group(), causal=True, load_balance=True)

    def whole(*inputs: Tensor) -> Tensor:
        return fo.attention(*inputs, causal=True)

    result = {"fusedops": _step(ring, *parts), "one GPU": _step(whole, q, k, v, dy)}
    if device == "cuda":
        result["eager"] = _of_torch(mesh, [x.transpose(1, 2).contiguous() for x in parts])
    return result


def _step(attend: Callable[..., Tensor], *tensors: Tensor) -> Call:
    *inputs, dy = (x.detach().requires_grad_() for x in tensors)

    def step() -> Any:
        return torch.autograd.grad(attend(*inputs), inputs, dy)

    return step


def _of_torch(mesh: Any, parts: list[Tensor]) -> Call:
    """torch's context_parallel. It needs a buffer, from which it takes the order of positions."""
    buffer = torch.zeros(2 * dist.get_world_size(), device=parts[0].device)

    def within(step: Call) -> Any:
        with context_parallel(mesh, buffers=[buffer], buffer_seq_dims=[0]):
            return step()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def attend_repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    step = _step(attend, *parts)
    try:
        within(step)
    except Exception:  # versions of torch whose context knows no key heads that are shared
        step = _step(attend_repeated, *parts)
    return lambda: within(step)


CASES = [
    Case(
        "causal attention, 65,536 positions, 32 heads of 128, 8 of keys",
        setup,
        (Goal("torch", "one GPU", 1.8), Goal("torch", "eager", 1.0)),
    )
]
