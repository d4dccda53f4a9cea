"""Runs that are small enough to be kept, and what a page says of a row of theirs.

A run that was trimmed is a run, which `python -m benchmarks` compares and prints as any other: the least, the quartiles
and the most stand for the samples, and have the same median and quartiles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.case import CALLS
from benchmarks.results.figures import NOT_SLOWER, fastest_baseline, seconds, times_of
from benchmarks.results.schema import Row, Run

OURS = "fusedops"


def trimmed(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The rows to publish. A run with a GPU publishes only the calls of its CPU: the host is not representative."""
    on_gpu = any(row["device"] == "cuda" for run in runs for row in run["results"])
    return [
        dict(run) | {"results": [_trimmed(row) for row in run["results"] if not on_gpu or _is_of_gpu(row)]}
        for run in runs
    ]


def write(runs: Sequence[Run], path: Path) -> None:
    """A line for each row, so that a change can be read."""
    parts = []
    for run in runs:
        head = json.dumps({key: value for key, value in run.items() if key != "results"}, ensure_ascii=False)
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in run["results"])
        parts.append(f'{head[:-1]}, "results": [\n{rows}\n]}}')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[" + ",\n".join(parts) + "]\n")


def rows_of(run: Run, *sections: str) -> list[Row]:
    return [row for row in run["results"] if row["section"] in sections]


def time_of(row: Row, name: str) -> float | None:
    """The median, in seconds."""
    return seconds(row["implementations"].get(name))


def slower(run: Run) -> list[tuple[float, Row, str, str]]:
    """Ratio, row, ours and baseline of whatever takes longer than a baseline, the worst first."""
    found = [(times, row, ours, baseline) for row in run["results"] for times, ours, baseline in _pairs(row)]
    return sorted((pair for pair in found if pair[0] > NOT_SLOWER), key=lambda pair: -pair[0])


def compared(run: Run) -> int:
    """The number of rows with a baseline whose results are right."""
    return sum(any(_pairs(row)) for row in run["results"])


def _pairs(row: Row) -> Iterator[tuple[float, str, str]]:
    """Ratio, ours and baseline. What a user calls is compared with the fastest baseline; a graph of ours, or what XLA
    made of it, with its own kind.
    """
    baselines = {OURS: fastest_baseline(row)}
    baselines |= {name: mode for name in row["implementations"] if (mode := name.removeprefix(f"{OURS}, ")) != name}
    for ours, baseline in baselines.items():
        times = times_of(row, baseline, ours) if baseline else None
        if times and baseline:
            yield times, ours, baseline


def names_of(rows: Iterable[Row]) -> list[str]:
    """The implementations of some rows, ours first."""
    names = dict.fromkeys(name for row in rows for name in row["implementations"])
    return sorted(names, key=lambda name: not name.startswith(OURS))


def _is_of_gpu(row: Row) -> bool:
    return bool(row["device"] == "cuda" or row["section"] in CALLS)


def _trimmed(row: Row) -> dict[str, Any]:
    implementations = {name: _rounded(implementation) for name, implementation in row["implementations"].items()}
    return dict(row) | {"goals": [], "implementations": implementations}  # they belong to the cases


def _rounded(implementation: Mapping[str, Any]) -> dict[str, Any]:
    samples = implementation.get("samples")
    if not samples:
        return dict(implementation)
    five = np.quantile(samples, (0, 0.25, 0.5, 0.75, 1))
    return dict(implementation) | {"samples": [float(f"{x:.4g}") for x in five]}
