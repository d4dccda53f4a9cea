"""Times fusedops against each framework's own operators."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import model
import numpy as np
from data import Text, windows

BATCH = 16


@dataclass(frozen=True)
class Times:
    work: str
    where: str
    fused: float  # seconds
    own: float


class Stopwatch:
    """Measures one piece of work at a time: `measure(*case)` for each of `cases(sides)`."""

    def __init__(self, parameters: Mapping[str, np.ndarray], text: Text, seconds: float) -> None:
        self.seconds = seconds
        self.parameters = parameters
        self.batch = windows(text.train, np.arange(BATCH) * model.CONTEXT, model.CONTEXT)
        self.work: dict[str, Callable[[Any, Any, bool], Callable[[], Any]]] = {
            "training step": lambda side, fo, compiled: side.step(fo, self.parameters, *self.batch, compiled),
            "one character": self._character,
        }

    def _character(self, side: Any, fo: Any, compiled: bool) -> Callable[[], Any]:
        predict = side.predictor(fo, self.parameters, compiled)
        return lambda: predict(self.batch[0][:1])

    def cases(self, sides: Sequence[Any]) -> list[tuple[str, Any, bool]]:
        return [(work, side, compiled) for work in self.work for side in sides for compiled in side.compiled]

    def measure(self, work: str, side: Any, compiled: bool) -> Times:
        calls = [self.work[work](side, fo, compiled) for fo in (side.fused, side.plain)]
        mode = "" if len(side.compiled) == 1 else ", graph" if compiled else ", eager"
        return Times(work, side.title + mode, *_medians(calls, side.wait, self.seconds))


def _medians(calls: Sequence[Callable[[], Any]], wait: Callable[[], None], seconds: float) -> list[float]:
    """The median time of each call. They run in turns, so that all meet the same noise, and five times at least."""
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
