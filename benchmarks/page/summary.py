"""Trims runs for the repository, and derives a page's figures from their rows.

`python -m benchmarks` compares and prints a trimmed run like any other: minimum, quartiles and maximum replace the
samples, with the same median and quartiles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases.case import CALLS
from benchmarks.results.figures import NOT_SLOWER, fastest_peer, seconds, times_of
from benchmarks.results.schema import Row, Run

OURS = "fusedops"


def trimmed(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The runs in trimmed form. If a GPU was measured, the CPU's rows are dropped, except calls."""
    on_gpu = any(row["device"] == "cuda" for run in runs for row in run["results"])
    return [
        dict(run) | {"results": [_trimmed(row) for row in run["results"] if not on_gpu or _is_of_gpu(row)]}
        for run in runs
    ]


def write(runs: Sequence[Run], path: Path) -> None:
    """Writes one row per line, for readable diffs."""
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
    """The median time in seconds."""
    return seconds(row["contenders"].get(name))


def slower(run: Run) -> list[tuple[float, Row, str, str]]:
    """(ratio, row, ours, peer) of contenders slower than a peer, the worst first."""
    found = [(times, row, ours, peer) for row in run["results"] for times, ours, peer in _pairs(row)]
    return sorted((pair for pair in found if pair[0] > NOT_SLOWER), key=lambda pair: -pair[0])


def compared(run: Run) -> int:
    """The number of rows with a peer whose result is right."""
    return sum(any(_pairs(row)) for row in run["results"])


def _pairs(row: Row) -> Iterator[tuple[float, str, str]]:
    """(ratio, ours, peer): "fusedops" with the fastest peer, "fusedops, graph" with "graph", and so on."""
    peers = {OURS: fastest_peer(row)}
    peers |= {name: mode for name in row["contenders"] if (mode := name.removeprefix(f"{OURS}, ")) != name}
    for ours, peer in peers.items():
        times = times_of(row, peer, ours) if peer else None
        if times and peer:
            yield times, ours, peer


def names_of(rows: Iterable[Row]) -> list[str]:
    """The contenders of some rows, ours first."""
    names = dict.fromkeys(name for row in rows for name in row["contenders"])
    return sorted(names, key=lambda name: not name.startswith(OURS))


def _is_of_gpu(row: Row) -> bool:
    return bool(row["device"] == "cuda" or row["section"] in CALLS)


def _trimmed(row: Row) -> dict[str, Any]:
    contenders = {name: _rounded(contender) for name, contender in row["contenders"].items()}
    return dict(row) | {"goals": [], "contenders": contenders}  # goals belong to performance.md


def _rounded(contender: Mapping[str, Any]) -> dict[str, Any]:
    samples = contender.get("samples")
    if not samples:
        return dict(contender)
    five = np.quantile(samples, (0, 0.25, 0.5, 0.75, 1))
    return dict(contender) | {"samples": [float(f"{x:.4g}") for x in five]}
