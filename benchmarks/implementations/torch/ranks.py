"""Steps that several ranks take together. Each rank is a process that torchrun has started."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from benchmarks.cases.case import Case
from benchmarks.distributed import cases_of
from benchmarks.measuring.timing import Build, Call, Clock, HostClock, Implementation

TIMEOUT = datetime.timedelta(minutes=8)  # a rank may wait for another one that compiles


def implementations(case: Case, clock: Callable[[], Clock]) -> dict[str, Build]:
    if not dist.is_initialized():
        dist.init_process_group("nccl" if case.device == "cuda" else "gloo", timeout=TIMEOUT)
        if case.device == "cuda":
            torch.cuda.set_device(dist.get_rank())
    setup = next(own.setup for own in cases_of(case.operator) if own.name == case.variant)
    steps = setup(dist.get_rank(), dist.get_world_size(), case.device)
    return {name: partial(Implementation, step, clock(), checked=False) for name, step in steps.items()}


class SlowestRank:
    """Seconds per call on the slowest rank. All ranks get the same number and so decide alike."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._clock: Clock = _between_events if device == "cuda" else HostClock()

    def __call__(self, call: Call, count: int) -> float:
        dist.all_reduce(torch.zeros(1, device=self._device))  # the ranks begin together
        seconds = torch.tensor(self._clock(call, count), dtype=torch.float64, device=self._device)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds.item()


def _between_events(call: Call, count: int) -> float:
    """Unlike EventClock, the GPU does not sleep before: a rank that sleeps longer would delay the others."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in itertools.repeat(None, count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / count
