"""Times work with fusedops and with each framework's own operators."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

# (side, operators, compiled) -> a call to be timed.
Work = Callable[[Any, Any, bool], Callable[[], Any]]


@dataclass(frozen=True)
class Times:
    work: str
    where: str
    fused: float  # seconds with fusedops
    baseline: float  # seconds with the framework's own operators


class Stopwatch:
    """Measures one kind of work at a time: `measure(*case)` for each of `cases(sides)`."""

    def __init__(self, work: Mapping[str, Work], seconds: float) -> None:
        self.work = work
        self.seconds = seconds

    def cases(self, sides: Sequence[Any]) -> list[tuple[str, Any, bool]]:
        return [(work, side, compiled) for work in self.work for side in sides for compiled in side.compiled]

    def measure(self, work: str, side: Any, compiled: bool) -> Times:
        calls = [self.work[work](side, fo, compiled) for fo in (side.fused, side.plain)]
        mode = "" if len(side.compiled) == 1 else ", graph" if compiled else ", eager"
        return Times(work, side.title + mode, *_medians(calls, side.wait, self.seconds))


def _medians(calls: Sequence[Callable[[], Any]], wait: Callable[[], None], seconds: float) -> list[float]:
    """The median time of each call, over at least five turns. Taking turns exposes all calls to the same noise."""
    for call in [*calls] * 3:  # warm-up: tracing, caches, allocators
        call()
    wait()
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while len(times[0]) < 5 or time.perf_counter() < end:
        for call, samples in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            wait()
            samples.append(time.perf_counter() - start)
    return [median(samples) for samples in times]
