"""Growth of the time with the number of elements, with the number of rows, and with the row length."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

from matplotlib import pyplot as plt

from benchmarks.cases.case import GROWTH
from benchmarks.page.pictures import style
from benchmarks.page.summary import names_of, rows_of, time_of
from benchmarks.results.figures import TITLES, floor_of
from benchmarks.results.schema import Row, Run

COLUMNS = 3
COPY = {"color": style.GREY, "linestyle": "--", "linewidth": 1}


def draw(runs: Sequence[Run], path: Path) -> str | None:
    run = next((run for run in runs if rows_of(run, *GROWTH)), None)
    panels = _panels(run) if run else {}
    if not run or not panels:
        return "the growth of the time, since no sizes were measured one beside the other"
    lines = -(-len(panels) // COLUMNS)
    figure, axes = plt.subplots(
        lines, COLUMNS, figsize=(12, 0.8 + 3.4 * lines), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for ax, (title, rows) in zip(axes.flat, panels.items(), strict=False):
        for name in reversed(names_of(rows)):
            times = [(row, floor_of(row) if name == "copy" else time_of(row, name)) for row in rows]
            points = [(prod(row["shape"]), time * 1e6) for row, time in times if time]
            options = COPY if name == "copy" else style.look(name) | {"linewidth": 1.2, "markersize": 5}
            if points:
                ax.plot(*zip(*points, strict=True), **options)
        ax.set_xscale("log", base=2)
        ax.margins(x=0.02)  # wider margins would show the cut-off label of the next power
        ax.set_yscale("log")
        ax.grid(True)
        ax.set_title(title)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel("µs")
    names = [name for name in names_of(row for rows in panels.values() for row in rows) if name != "copy"]
    style.legend(figure, names, {"floor": COPY})
    dtype = next(iter(panels.values()))[0]["dtype"]
    figure.supxlabel(f"elements of {dtype}; {TITLES[run['framework']]}, forward", fontsize=11)
    style.save(figure, path, runs)
    return None


def _panels(run: Run) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for section in GROWTH:
        for row in rows_of(run, section):
            if len(row["shape"]) == 1:
                what = ""
            elif section == "growth-length":
                what = f", {row['shape'][0]} rows, longer and longer"
            else:
                what = f", more and more rows of {max(x['shape'][-1] for x in rows_of(run, section))}"
            found.setdefault(row["operator"] + what, []).append(row)
    return {title: sorted(rows, key=lambda row: prod(row["shape"])) for title, rows in found.items()}
