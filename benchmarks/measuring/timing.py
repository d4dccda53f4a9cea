"""Times implementations in turns, so that disturbances of the machine affect all of them alike."""

from __future__ import annotations

import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Call = Callable[[], Any]
Clock = Callable[[Call, int], float]  # (call, number of calls) -> seconds per call


@dataclass(frozen=True)
class Implementation:
    call: Call
    clock: Clock
    work: float | None = None  # work of one call; None: the case's
    calls: int = 1  # calls of the operator in one `call`
    checked: bool = True  # True if the output is the case's result
    once: Call | None = None  # a single call, if `call` is a graph of many or rotates over inputs
    held: int | None = None  # GPU memory that it holds between calls, in bytes; None: all memory in use


Build = Callable[[], Implementation]


@dataclass(frozen=True)
class Effort:
    round: float  # seconds of one implementation's turn
    total: float  # approximate seconds of a case
    min_calls: int = 1  # per round
    min_rounds: int = 5
    max_rounds: int = 100


class Failed(Exception):
    """An implementation, named by `name`, raised `error` while it was timed."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name, error)
        self.name, self.error = name, error


class HostClock:
    """Host time of calls with one synchronization at the end.

    `host_share` is the median fraction of the time that the host needed to issue the calls. Near 1, the time is the
    host's. None without synchronization.
    """

    def __init__(self, synchronize: Call | None = None) -> None:
        self.synchronize = synchronize
        self._shares: list[float] = []

    @property
    def host_share(self) -> float | None:
        return statistics.median(self._shares) if self._shares else None

    def __call__(self, call: Call, count: int) -> float:
        if self.synchronize:
            self.synchronize()
        start = time.perf_counter()
        for _ in itertools.repeat(None, count):
            call()
        issued = end = time.perf_counter()
        if self.synchronize:
            self.synchronize()
            end = time.perf_counter()
            self._shares.append((issued - start) / (end - start))
        return (end - start) / count


def take_turns(implementations: Mapping[str, Implementation], effort: Effort) -> dict[str, list[float]]:
    """Seconds per call of each implementation, one value per round. Raises Failed if an implementation raises."""

    def timed(name: str, count: int) -> float:
        try:
            return implementations[name].clock(implementations[name].call, count)
        except Exception as error:
            raise Failed(name, error) from error

    counts: dict[str, int] = {}
    for name in implementations:
        timed(name, effort.min_calls)  # warm-up
        seconds = timed(name, effort.min_calls)
        counts[name] = max(effort.min_calls, min(5000, round(effort.round / seconds)))

    samples: dict[str, list[float]] = {name: [] for name in implementations}
    order, shuffle = list(implementations), random.Random(0).shuffle
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        for turn in range(effort.max_rounds):
            if turn >= effort.min_rounds and time.perf_counter() - start > effort.total:
                break
            shuffle(order)  # varies each implementation's predecessor
            for name in order:
                samples[name].append(timed(name, counts[name]) / implementations[name].calls)
    finally:
        if collecting:
            gc.enable()
    return samples
