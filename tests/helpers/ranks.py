"""Process groups of test programs that run once per rank."""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist


def init_process_group(device: str, rank: int, world: int, store: str, seconds: int) -> None:
    """Joins the ranks that share the file `store`: by NCCL with one GPU each, or by gloo. `seconds`: its time limit."""
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=seconds),
    )


def destroy_process_group() -> None:
    """Leaves the group when all ranks do: torch 2.13 aborts some processes that end soon after they have left it."""
    dist.barrier()
    dist.destroy_process_group()
