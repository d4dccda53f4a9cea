"""The time of a Python call on a few numbers: the host overhead of a framework and its operators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import FuncFormatter

from benchmarks.cases.case import CALLS
from benchmarks.page.pictures import style
from benchmarks.page.pictures.dots import lines, panels
from benchmarks.page.summary import OURS, names_of, rows_of, time_of
from benchmarks.results.figures import TITLES
from benchmarks.results.schema import Row, Run


def draw(runs: Sequence[Run], path: Path) -> str | None:
    found = {}
    for section in CALLS:
        for run in runs:
            rows = [row for row in rows_of(run, section) if time_of(row, OURS)]
            if rows:
                found[f"{TITLES[run['framework']]}, {'GPU' if rows[0]['device'] == 'cuda' else 'CPU'}"] = rows
    if not found:
        return "the time of a call, since no small inputs were measured"
    times = {title: {line: _times(row) for line, row in lines(rows).items()} for title, rows in found.items()}
    figure, axes = panels(times, "µs: left is fast")
    for ax in axes:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    names = names_of(row for rows in found.values() for row in rows)
    known = [name for name in names if name in style.LOOKS]
    others = ", ".join(name for name in names if name not in style.LOOKS)
    style.legend(figure, known, {others: style.look("")} if others else {})
    style.save(figure, path, runs)
    return None


def _times(row: Row) -> dict[str, float]:
    return {name: 1e6 * time for name in names_of([row]) if (time := time_of(row, name))}
