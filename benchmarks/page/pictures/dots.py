"""Dot plots: a panel per framework, a line per operator and direction, a dot per implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import pyplot as plt

from benchmarks.operators import OPERATORS
from benchmarks.page.pictures import style
from benchmarks.results.schema import Row

Values = Mapping[str, float]  # implementation -> x coordinate of its dot
Line = tuple[str, str]  # (operator, variant)
ORDER = list(OPERATORS)


def lines(rows: Sequence[Row]) -> dict[Line, Row]:
    """The first row of each operator and direction."""
    found: dict[Line, Row] = {}
    for row in rows:
        found.setdefault((row["operator"], row["variant"]), row)
    return found


def panels(found: Mapping[str, Mapping[Line, Values]], xlabel: str) -> tuple[Any, Sequence[Any]]:
    """A figure with axes for each title."""
    all_lines = {line for values in found.values() for line in values}
    places = {line: i for i, line in enumerate(sorted(all_lines, key=lambda x: (ORDER.index(x[0]), x[1])))}
    size = (3 + 3.6 * len(found), 1.5 + 0.25 * len(places))
    figure, axes = plt.subplots(1, len(found), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for ax, (title, values) in zip(axes[0], found.items(), strict=True):
        for line, dots in values.items():
            for name, value in reversed(list(dots.items())):  # draws ours on top
                ax.plot(value, places[line], markersize=7, linestyle="", **style.look(name))
        ax.grid(True)
        ax.set_title(title)
    axes[0, 0].set_yticks(list(places.values()), [" ".join(line) for line in places], fontsize=9)
    axes[0, 0].set_ylim(len(places) - 0.5, -0.5)
    figure.supxlabel(xlabel, fontsize=11)
    return figure, axes[0]
