"""What was found, as one picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from comparing import Written
from data import Text
from stopwatch import Times
from training import Trained

matplotlib.use("Agg")  # no window is wanted, and there may be no screen

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

FUSED, OWN, INK, FAINT = "#0b7a75", "#d9a441", "#2b2d42", "#b9c4c9"
STYLE = {
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
COLUMNS = 72  # of the text


def save(path: Path, trained: Trained, text: Text, written: Sequence[Written], measured: Sequence[Times]) -> None:
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(15, 8.5), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
        top, bottom = figure.subfigures(2, 1, height_ratios=(1.9, 1), hspace=0.03)
        left, right = top.subfigures(1, 2, width_ratios=(1, 1.25), wspace=0.03)
        _losses(left.subplots(), trained)
        _times(right, measured)
        by_framework = _by_framework(written)
        places = np.atleast_1d(bottom.subplots(1, len(by_framework)))
        for axes, (title, texts) in zip(places, by_framework.items(), strict=True):
            _text(axes, title, texts, written[0], text)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        plt.close(figure)


def _by_framework(written: Sequence[Written]) -> dict[str, list[Written]]:
    frameworks: dict[str, list[Written]] = {}
    for one in written:
        frameworks.setdefault(one.where.partition(",")[0], []).append(one)
    return frameworks


def _losses(axes: Axes, trained: Trained) -> None:
    steps = np.arange(1, len(trained.losses) + 1)
    axes.plot(steps, trained.losses, color=FAINT, linewidth=0.8, label="one batch")
    axes.plot(*zip(*trained.test_losses, strict=True), color=FUSED, linewidth=2, marker="o", ms=3.5, label="test")
    axes.set(title="Training in PyTorch with fusedops", xlabel="step", ylabel="loss, nats per character")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="upper right")
    axes.annotate(
        f"{trained.test_losses[-1][1]:.2f}",
        trained.test_losses[-1],
        xytext=(0, 9),
        textcoords="offset points",
        ha="right",
        color=FUSED,
        weight="bold",
    )


def _times(figure: SubFigure, measured: Sequence[Times]) -> None:
    """One group of bars for each piece of work, each with its own scale."""
    works = list(dict.fromkeys(t.work for t in measured))
    rows = figure.subplots(len(works), 1)
    for axes, work in zip(rows, works, strict=True):
        times = [t for t in measured if t.work == work]
        y = np.arange(len(times))
        for offset, color, label, values in (
            (-0.19, FUSED, "fusedops", [t.fused * 1e3 for t in times]),
            (0.19, OWN, "the framework's own operators", [t.own * 1e3 for t in times]),
        ):
            bars = axes.barh(y + offset, values, 0.36, color=color, label=label)
            axes.bar_label(bars, fmt="%.2f", padding=3, size=9)
        axes.set_yticks(y, [t.where for t in times])
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.tick_params(axis="y", length=0)
        axes.set_title(f"{work.capitalize()}, ms")
    rows[0].legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)


def _text(axes: Axes, title: str, texts: Sequence[Written], first: Written, text: Text) -> None:
    same = all(one.differing_characters(first) == 0 for one in texts)
    note = "" if any(one is first for one in texts) else ": the same text" if same else ": another text"
    axes.set_title(f"Written by {title}{note}")
    axes.set_axis_off()
    lines = "\n\n".join(map(text.decoded, texts[0].texts)).splitlines()
    folded = [piece for line in lines for piece in textwrap.wrap(line, COLUMNS) or [""]]
    shown = "\n".join(folded[:14]).replace("$", r"\$")  # a dollar begins a formula
    axes.text(0, 1, shown, family="monospace", size=9.5, va="top", transform=axes.transAxes, linespacing=1.25)
