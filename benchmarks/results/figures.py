"""Figures derived from a row: the times of its implementations, and their ratios."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.cases.case import HOST_SECTIONS
from benchmarks.results.schema import Row

TITLES = {"torch": "PyTorch", "tf": "TensorFlow", "jax": "JAX"}
# Implementations that do the same work by other means, in any framework.
BASELINES = ("eager", "compiled", "Liger", "QuACK", "cuDNN", "flash", "graph", "XLA")
HOST_BOUND = 0.9  # if the host issues calls for a greater fraction of the time, the time is the host's
NOT_SLOWER = 1.02  # ratio to the fastest baseline's time; two measurements of one implementation differ by this much


def seconds(implementation: Mapping[str, Any] | None) -> float | None:
    samples = implementation.get("samples") if implementation else None
    return statistics.median(samples) if samples else None


def spread(implementation: Mapping[str, Any] | None) -> float:
    """Half of the distance between the quartiles, relative to the median."""
    samples = implementation.get("samples") if implementation else None
    if not samples or len(samples) < 2:
        return 0.0
    lower, middle, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return (upper - lower) / 2 / middle


def fastest_baseline(row: Row) -> str | None:
    """The name of the fastest baseline whose results are right."""
    times = {name: time for name in BASELINES if (time := seconds(row["implementations"].get(name)))}
    return min(times, key=times.__getitem__) if times else None


def times_of(row: Row, against: str, ours: str = "fusedops") -> float | None:
    """The ratio of our median time to the other implementation's, for the same work."""
    times = [_seconds_for(row, name) for name in (ours, against)]
    return times[0] / times[1] if times[0] and times[1] else None


def floor_of(row: Row) -> float | None:
    """The seconds in which the row's copy moves as many bytes."""
    return _seconds_for(row, "copy")


def is_host_bound(row: Row, implementation: Mapping[str, Any]) -> bool:
    """True if a time meant to be the GPU's is the host's."""
    return implementation.get("host_share", 0) > HOST_BOUND and row["section"] not in HOST_SECTIONS


def _seconds_for(row: Row, name: str) -> float | None:
    """The implementation's time for the row's work."""
    implementation = row["implementations"].get(name)
    time = seconds(implementation)
    return time * row["work"] / implementation["work"] if implementation and time else None
