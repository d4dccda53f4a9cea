"""Clocks of the GPU: events, the profiler, and CUDA graphs that leave the host out."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.measuring.timing import Call

SLEEP = (1e-3, 50e-3)  # seconds, at least and at most
MARGIN = 1.5  # times what the host has needed at least
FREQUENCY = 2e9  # of the GPU, about: it counts cycles while it sleeps


class EventClock:
    """The GPU's own time for back-to-back calls: it sleeps until the host has issued them.

    `first` runs on the GPU before every so many calls, and is not in their time. `host_share` is the part of the GPU's
    time in which the host was still issuing, or waited in a call, by the median: 0 if it slept long enough; near 1, the
    host was measured.
    """

    def __init__(self, first: Call = lambda: None, every: int | None = None) -> None:
        self.first, self.every = first, every
        self._issues: list[float] = []  # seconds of the host for one call
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
        """The GPU's seconds, and those of them in which the host was still issuing."""
        asleep, start, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        # The least that was seen: what a full queue or a first call took is more than what the host needs.
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

    kept = outputs, arguments  # freed inputs would be read, too: the graph holds no tensor

    def replay() -> Any:
        captured.replay()
        return kept[0][0]

    return replay
