"""Clocks of the GPU: events and the profiler; and CUDA graphs, which exclude the host."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.measuring.timing import Call

SLEEP = (1e-3, 50e-3)  # minimum and maximum, in seconds
MARGIN = 1.5  # factor on the host's shortest issue time
FREQUENCY = 2e9  # approximate clock of the GPU, whose sleep counts cycles


class EventClock:
    """GPU time of back-to-back calls: the GPU sleeps until the host has issued them.

    `first` runs on the GPU before every `every` calls and is not timed. `host_share` is the median fraction of the
    GPU's time in which the host was still issuing calls or waiting in one. It is 0 if the sleep was long enough; near
    1, the time is the host's.
    """

    def __init__(self, first: Call = lambda: None, every: int | None = None) -> None:
        self.first, self.every = first, every
        self._issues: list[float] = []  # host seconds to issue one call
        self._shares: list[float] = []

    @property
    def host_share(self) -> float:
        return statistics.median(self._shares)

    def __call__(self, call: Call, count: int) -> float:
        seconds, waited, done = 0.0, 0.0, 0
        while done < count:
            now = min(self.every or count, count - done)
            took, late = self._time(call, now)
            seconds, waited, done = seconds + took, waited + late, done + now
        self._shares.append(waited / seconds)
        return seconds / count

    def _time(self, call: Call, count: int) -> tuple[float, float]:
        """The GPU's seconds, and the part of them in which the host was still issuing calls."""
        asleep, start, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        # The shortest issue time so far: a full queue or a first call takes longer than issuing does.
        least, most = SLEEP
        sleep = min(most, max(least, MARGIN * count * min(self._issues, default=0.0)))
        asleep.record()
        begin = time.perf_counter()
        torch.cuda._sleep(int(sleep * FREQUENCY))
        self.first()
        start.record()
        issuing = time.perf_counter()
        for _ in itertools.repeat(None, count):
            call()
        issued = time.perf_counter()
        end.record()
        end.synchronize()
        self._issues.append((issued - issuing) / count)
        ahead = asleep.elapsed_time(start) * 1e-3
        return start.elapsed_time(end) * 1e-3, max(0.0, issued - begin - ahead)


def profiler_clock(call: Call, count: int) -> float:
    """The time inside kernels, without the gaps between them."""
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
    """A CUDA graph of one call for each list of arguments. Each has its own output if the arguments differ."""
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

    alive = outputs, arguments  # the graph itself holds no reference to its tensors

    def replay() -> Any:
        captured.replay()
        return alive[0][0]

    return replay
