"""What follows from a row: the times of its contenders, and how they compare."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.cases.case import OF_HOST
from benchmarks.results.schema import Row

TITLES = {"torch": "PyTorch", "tf": "TensorFlow"}
# Contenders that do the same work by other means, in either framework.
PEERS = ("eager", "compiled", "Liger", "QuACK", "cuDNN", "flash", "graph", "XLA")
HOST_BOUND = 0.9  # the host issued calls for this part of the time: it was not the GPU that was measured
NOT_SLOWER = 1.02  # times the fastest peer's time: two measurements of one contender differ by that


def seconds(contender: Mapping[str, Any] | None) -> float | None:
    samples = contender.get("samples") if contender else None
    return statistics.median(samples) if samples else None


def spread(contender: Mapping[str, Any] | None) -> float:
    """Half of the distance between the quartiles, relative to the median."""
    samples = contender.get("samples") if contender else None
    if not samples or len(samples) < 2:
        return 0.0
    lower, middle, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return (upper - lower) / 2 / middle


def fastest_peer(row: Row) -> str | None:
    """By name, of those whose results are right."""
    times = {name: time for name in PEERS if (time := seconds(row["contenders"].get(name)))}
    return min(times, key=times.__getitem__) if times else None


def times_of(row: Row, against: str, ours: str = "fusedops") -> float | None:
    """How many times as long as the other ours takes for the same work, by medians."""
    times = [_seconds_for(row, name) for name in (ours, against)]
    return times[0] / times[1] if times[0] and times[1] else None


def floor_of(row: Row) -> float | None:
    """The seconds in which the copy beside this row moves as much."""
    return _seconds_for(row, "copy")


def is_of_host(row: Row, contender: Mapping[str, Any]) -> bool:
    """Whether it was the host that was measured, where the GPU was meant."""
    return contender.get("host_share", 0) > HOST_BOUND and row["section"] not in OF_HOST


def _seconds_for(row: Row, name: str) -> float | None:
    """The work of the row by that contender."""
    contender = row["contenders"].get(name)
    time = seconds(contender)
    return time * row["work"] / contender["work"] if contender and time else None
