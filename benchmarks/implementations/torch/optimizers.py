"""AdamW over many parameters: fusedops's and torch's. All update the same tensors, each with its own moments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.cases.case import Case
from benchmarks.cases.optimizers import sizes_of
from benchmarks.measuring.timing import Build, Clock, Implementation
from fusedops.torch.optim import AdamW


def implementations(case: Case, clock: Callable[[], Clock]) -> dict[str, Build]:
    options: dict[str, Any] = {"dtype": getattr(torch, case.dtype), "device": case.device}
    params = [torch.nn.Parameter(torch.zeros(size, **options)) for size in sizes_of(case)]
    for param in params:
        param.grad = torch.full_like(param, 1e-3)

    def build(optimizer: Callable[..., Any]) -> Implementation:
        return Implementation(optimizer(params).step, clock(), checked=False)

    def copied() -> Implementation:
        half = int(case.work) // 4
        source, target = (torch.empty(half, dtype=torch.uint8, device=case.device) for _ in range(2))
        return Implementation(partial(target.copy_, source), clock(), work=2.0 * half, checked=False)

    return {
        "fusedops": partial(build, AdamW),
        "fusedops, norm clipped": partial(build, partial(AdamW, max_grad_norm=1.0)),
        "eager": partial(build, partial(torch.optim.AdamW, fused=True)),
        "torch, foreach": partial(build, partial(torch.optim.AdamW, foreach=True)),
        "copy": copied,
    }
