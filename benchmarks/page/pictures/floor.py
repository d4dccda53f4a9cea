"""The floor over the time, for each operator and baseline: at 1 it takes as long as a copy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.page.pictures import style
from benchmarks.page.pictures.dots import lines, panels
from benchmarks.page.summary import OURS, names_of, rows_of, time_of
from benchmarks.results.figures import BASELINES, TITLES, floor_of
from benchmarks.results.schema import Row, Run

SECTIONS = ("rows", "stream", "cpu-rows", "cpu")


def draw(runs: Sequence[Run], path: Path) -> str | None:
    found = {f"{TITLES[run['framework']]}, {rows[0]['dtype']}": rows for run in runs if (rows := _rows(run))}
    if not found:
        return "the fraction of the floor, since no copy was measured beside an operator"
    fractions = {title: {line: _fractions(row) for line, row in lines(rows).items()} for title, rows in found.items()}
    figure, axes = panels(fractions, "floor / time: right is fast, 1 is a copy of as many bytes")
    for ax in axes:
        ax.axvline(1, color=style.GREY, linewidth=1)
        ax.set_xlim(left=0)
    names = names_of(row for rows in found.values() for row in rows)
    style.legend(figure, [name for name in names if name in (OURS, *BASELINES)])
    style.save(figure, path, runs)
    return None


def _rows(run: Run) -> list[Row]:
    """Rows with a floor, of one dtype: that of the operators over rows if they were measured."""
    rows = [row for section in SECTIONS for row in rows_of(run, section) if floor_of(row) and time_of(row, OURS)]
    return [row for row in rows if row["dtype"] == rows[0]["dtype"]]


def _fractions(row: Row) -> dict[str, float]:
    floor = floor_of(row) or 0.0
    return {name: floor / time for name in (OURS, *BASELINES) if (time := time_of(row, name))}
