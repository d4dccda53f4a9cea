"""Clocks of the GPU: events, the profiler, and CUDA graphs that leave the host out."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.timing import Call


def event_clock(call: Call, count: int, first: Call = lambda: None) -> float:
    """The GPU's own time for back-to-back calls, behind `first`: it sleeps until the host is ahead of it."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(2_000_000)  # cycles, about a millisecond
    first()
    start.record()
    for _ in itertools.repeat(None, count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / count


def profiler_clock(call: Call, count: int) -> float:
    """The time inside kernels, without what lies between them."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in itertools.repeat(None, min(count, 200)):
            call()
        torch.cuda.synchronize()
    events = [event for event in profile.events() or () if event.device_type == torch.autograd.DeviceType.CUDA]
    if not events:
        raise RuntimeError("torch.profiler saw no kernel")
    return statistics.median(event.time_range.elapsed_us() for event in events) * 1e-6


def graph(function: Callable[..., Any], arguments: Sequence[Sequence[Any]]) -> Call:
    """One call for each list of arguments, captured; the outputs are different buffers where the arguments are."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function(*arguments[0])
    torch.cuda.synchronize()
    captured, rotating = torch.cuda.CUDAGraph(), arguments[0] is not arguments[-1]
    outputs: list[Any] = []
    with torch.cuda.graph(captured, stream=stream):
        for some in arguments:
            output = function(*some)
            if rotating or not outputs:
                outputs.append(output)

    def replay() -> Any:
        captured.replay()
        return outputs[0]

    return replay
