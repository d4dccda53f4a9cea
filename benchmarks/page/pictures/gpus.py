"""Steps on several GPUs: speed relative to PyTorch's eager mode on as many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.cases.case import DISTRIBUTED
from benchmarks.page.pictures import speed
from benchmarks.page.summary import OURS, rows_of
from benchmarks.results.figures import times_of
from benchmarks.results.schema import Run

_NAMES = (OURS, "compiled")


def draw(runs: Sequence[Run], path: Path) -> str | None:
    speeds = {}
    for row in (row for run in runs for row in rows_of(run, DISTRIBUTED)):
        speeds[row["operator"]] = {name: ratio for name in _NAMES if (ratio := times_of(row, name, "eager"))}
    if not any(speeds.values()):
        return "steps on several GPUs, which were not measured"
    speed.draw({"Steps on several GPUs": speeds}, path, runs)
    return None
