"""A roofline for each dtype: arithmetic per second against arithmetic per byte.

The roofs are measured in the same run: the highest bandwidth of a copy, and the fastest matrix product of that dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.text import OffsetFrom

from benchmarks.cases.case import SIZES
from benchmarks.page.pictures import style
from benchmarks.page.summary import OURS, time_of
from benchmarks.results.figures import TITLES, fastest_baseline
from benchmarks.results.schema import Row, Run

LEADER = {"arrowstyle": "-", "color": "#AAAAAA", "linewidth": 0.7}
SECTIONS = ("stream", "rows", "dtypes", "matmul", "cpu", "cpu-rows")
LINE = 11  # points between labels


def draw(runs: Sequence[Run], path: Path) -> str | None:
    run = next((run for run in runs if _bandwidth(run)), None)
    panels = {dtype: rows for dtype in SIZES if run and (rows := _rows(run, dtype))}
    if not run or not panels:
        return "rooflines, since no copy was measured beside an operator"
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(6.2 * columns, 1 + 4.2 * lines), squeeze=False, layout="constrained"
    )
    for ax, (dtype, rows) in zip(axes.flat, panels.items(), strict=False):
        _panel(ax, f"{TITLES[run['framework']]}, {dtype}", rows, _bandwidth(run))
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    baselines = dict.fromkeys(
        baseline for rows in panels.values() for row in rows if (baseline := fastest_baseline(row))
    )
    hollow = {"other than forward": style.look(OURS, filled=False)}
    style.legend(figure, [OURS, *(name for name in style.LOOKS if name in baselines)], hollow)
    style.save(figure, path, runs)
    return None


def _panel(ax: Any, title: str, rows: Sequence[Row], bandwidth: float) -> None:
    peak = max((_speed(row, name) for row in rows if row["unit"] == "FLOP" for name in (OURS, "eager")), default=0.0)
    intensities = [_intensity(row) for row in rows]
    ends = min(intensities) / 2, max(intensities) * 2
    ridge = peak / bandwidth if peak else ends[1]
    roof = [x for x in (ends[0], ridge, ends[1]) if ends[0] <= x <= ends[1]]
    heights = [min(x * bandwidth, peak or float("inf")) for x in roof]
    ax.plot(roof, heights, color=style.GREY, linewidth=1)
    roofs = f"copy: {bandwidth * 1e-9:.4g} GB/s" + f"\nbest product: {peak * 1e-12:.3g} TFLOP/s" * bool(peak)
    ax.text(0.03, 0.97, roofs, transform=ax.transAxes, va="top")
    for row in rows:
        filled = "backward" not in row["variant"]
        for name in (fastest_baseline(row), OURS):
            if name and (speed := _speed(row, name)):
                ax.plot(_intensity(row), speed, markersize=6, linestyle="", **style.look(name, filled=filled))
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(min(heights) / 3, 5 * max(heights))
    ax.grid(True)
    ax.set_title(title)
    ax.set_xlabel("operations per byte")
    ax.set_ylabel("operations per second")
    _label(ax, [row for row in rows if row["unit"] == "B"])


def _label(ax: Any, rows: Sequence[Row]) -> None:
    """Labels in a column to the right of the points, in the same order, each with a line to our point."""
    first: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row["variant"] != "forward"):
        first.setdefault(row["operator"], row)
    right, bottom = 4 * max(map(_intensity, first.values()), default=1), 1.2 * ax.get_ylim()[0]
    for place, (name, row) in enumerate(sorted(first.items(), key=lambda x: _speed(x[1], OURS))):
        base = ax.annotate("", (right, bottom), (right, bottom))
        ax.annotate(
            name,
            (_intensity(row), _speed(row, OURS)),
            (0, LINE * place),
            xycoords="data",
            textcoords=OffsetFrom(base, (0, 0), "points"),
            fontsize=8,
            va="center",
            arrowprops=LEADER | {"relpos": (0, 0.5)},
        )


def _rows(run: Run, dtype: str) -> list[Row]:
    """The rows whose operations and bytes were counted."""
    return [
        row
        for row in run["results"]
        if row["section"] in SECTIONS and row["dtype"] == dtype and row.get("flops") and row.get("bytes")
        if time_of(row, OURS)
    ]


def _bandwidth(run: Run) -> float:
    """The highest bandwidth of a copy, in bytes per second."""
    copies = [row for row in run["results"] if row["section"] in SECTIONS and time_of(row, "copy")]
    return max((row["implementations"]["copy"]["work"] / (time_of(row, "copy") or 1) for row in copies), default=0.0)


def _intensity(row: Row) -> float:
    return float(row["flops"] / row["bytes"])


def _speed(row: Row, name: str) -> float:
    time = time_of(row, name)
    return row["flops"] / time if time else 0.0
