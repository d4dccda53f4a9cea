"""Contenders take turns, so that whatever else happens on the machine happens to all of them."""

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
Clock = Callable[[Call, int], float]  # seconds per call, of so many calls


@dataclass(frozen=True)
class Contender:
    call: Call
    clock: Clock
    work: float | None = None  # if it is not the case's
    calls: int = 1  # that are in one `call`
    checked: bool = True  # its output is the case's
    once: Call | None = None  # the same work, where `call` is a graph of many or takes turns over inputs
    held: int | None = None  # bytes of the GPU that it alone holds between calls; None: all that are in use are its own


Build = Callable[[], Contender]


@dataclass(frozen=True)
class Effort:
    round: float  # seconds that one contender measures before the next takes its turn
    total: float  # seconds for a case, about
    least_calls: int = 1  # in a round
    least_rounds: int = 5
    most_rounds: int = 100


class Failed(Exception):
    """What a contender raised while it was timed, and which."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name, error)
        self.name, self.error = name, error


class HostClock:
    """Reads the host's clock around calls with one synchronization at the end.

    `host_share` is the part of the time that the host needed to issue the calls, by the median: near 1, the host was
    measured. None if nothing is synchronized.
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


def take_turns(contenders: Mapping[str, Contender], effort: Effort) -> dict[str, list[float]]:
    """Seconds per call of each contender, one value per round; raises Failed."""

    def timed(name: str, count: int) -> float:
        try:
            return contenders[name].clock(contenders[name].call, count)
        except Exception as error:
            raise Failed(name, error) from error

    counts: dict[str, int] = {}
    for name in contenders:
        timed(name, effort.least_calls)  # warm-up
        seconds = timed(name, effort.least_calls)
        counts[name] = max(effort.least_calls, min(5000, round(effort.round / seconds)))

    samples: dict[str, list[float]] = {name: [] for name in contenders}
    order, shuffle = list(contenders), random.Random(0).shuffle
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        for turn in range(effort.most_rounds):
            if turn >= effort.least_rounds and time.perf_counter() - start > effort.total:
                break
            shuffle(order)  # nobody always follows the same neighbour
            for name in order:
                samples[name].append(timed(name, counts[name]) / contenders[name].calls)
    finally:
        if collecting:
            gc.enable()
    return samples
