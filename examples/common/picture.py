"""The style of the pictures, and bar charts of times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")  # needs no display

import matplotlib.pyplot as plt
from matplotlib.figure import Figure, SubFigure

from common.stopwatch import Times

FUSED, BASELINE, INK = "#0b7a75", "#d9a441", "#2b2d42"
_STYLE = {
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@contextmanager
def saved(path: Path, size: tuple[float, float]) -> Iterator[Figure]:
    """Yields a figure to draw into, and saves it."""
    with plt.rc_context(_STYLE):
        figure = plt.figure(figsize=size, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        plt.close(figure)


def times(figure: SubFigure, measured: Sequence[Times]) -> None:
    """One group of bars for each kind of work, each with its own scale."""
    works = list(dict.fromkeys(t.work for t in measured))
    rows = figure.subplots(len(works), 1)
    for axes, work in zip(rows, works, strict=True):
        times = [t for t in measured if t.work == work]
        y = np.arange(len(times))
        for offset, color, label, values in (
            (-0.19, FUSED, "fusedops", [t.fused * 1e3 for t in times]),
            (0.19, BASELINE, "the framework's own operators", [t.baseline * 1e3 for t in times]),
        ):
            bars = axes.barh(y + offset, values, 0.36, color=color, label=label)
            axes.bar_label(bars, fmt="%.2f", padding=3, size=9)
        axes.set_yticks(y, [t.where for t in times])
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.tick_params(axis="y", length=0)
        axes.set_title(f"{work}, ms (shorter is better)")
    rows[0].legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)
