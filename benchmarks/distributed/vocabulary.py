"""The loss of a language model whose vocabulary is divided over the ranks, forward and backward."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel

import fusedops.torch as fo
from benchmarks.cases.case import Goal
from benchmarks.distributed import Case
from benchmarks.measuring.timing import Call

SIZES = {"cuda": (8192, 4096, 128256), "cpu": (32, 16, 128)}  # rows, features, classes


def setup(rank: int, world: int, device: str) -> dict[str, Call]:
    rows, features, classes = SIZES[device]
    torch.manual_seed(0)  # the same on all ranks
    x = torch.randn(rows, features, device=device, dtype=torch.bfloat16).requires_grad_()
    weight = (torch.randn(classes, features, device=device, dtype=torch.bfloat16) / features**0.5).requires_grad_()
    labels = torch.randint(classes, (rows,), device=device)
    part = weight.detach().tensor_split(world)[rank].clone().requires_grad_()
    mesh = init_device_mesh(device, (world,))

    def step(loss: Callable[[], torch.Tensor], own: torch.Tensor) -> Call:
        return lambda: torch.autograd.grad(loss(), (x, own))

    def of_logits() -> object:
        placements = ((x, Replicate()), (part, Shard(0)), (labels, Replicate()))
        whole, weights, targets = (DTensor.from_local(y, mesh, [placement]) for y, placement in placements)
        with loss_parallel():  # in the backward, too
            loss = torch.nn.functional.cross_entropy(torch.nn.functional.linear(whole, weights), targets)
            return torch.autograd.grad(loss.to_local(), (x, part))  # type: ignore[attr-defined]

    divided = step(
        lambda: fo.distributed.linear_cross_entropy(x, part, labels, group=dist.group.WORLD),  # type: ignore[arg-type]
        part,
    )
    steps = {
        "fusedops": divided,
        "eager": of_logits,
        "one GPU": step(lambda: fo.linear_cross_entropy(x, weight, labels), weight),
    }
    if device == "cuda" and rank == 0:
        print(f"logits: {rows * classes / world * x.element_size() / 2**20:,.0f} MiB a rank", file=sys.stderr)
    for name, call in steps.items():
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            call()
            peak = (torch.cuda.max_memory_allocated() - before) / 2**20
            if rank == 0:
                print(f"{name}: at most {peak:,.0f} MiB beside weights and inputs", file=sys.stderr)
    return steps


CASES = [
    Case(
        "linear_cross_entropy, 8192 x 4096 x 128256",
        setup,
        (Goal("torch", "one GPU", 1 / 0.55, as_time=True), Goal("torch", "eager", as_time=True)),
    )
]
