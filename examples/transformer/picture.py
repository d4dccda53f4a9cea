"""The results, as one picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import picture
from common.picture import FUSED
from common.stopwatch import Times
from comparing import Written
from data import Text
from matplotlib.axes import Axes

if TYPE_CHECKING:
    from training import Trained  # needs PyTorch

FAINT = "#b9c4c9"
COLUMNS = 72  # width of the text


def save(path: Path, trained: Trained, text: Text, written: Sequence[Written], measured: Sequence[Times]) -> None:
    with picture.saved(path, (15, 8.5)) as figure:
        top, bottom = figure.subfigures(2, 1, height_ratios=(1.9, 1), hspace=0.03)
        left, right = top.subfigures(1, 2, width_ratios=(1, 1.25), wspace=0.03)
        _losses(left.subplots(), trained)
        picture.times(right, measured)
        by_framework = _by_framework(written)
        places = np.atleast_1d(bottom.subplots(1, len(by_framework)))
        for axes, (title, texts) in zip(places, by_framework.items(), strict=True):
            _text(axes, title, texts, written[0], text)


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


def _text(axes: Axes, title: str, texts: Sequence[Written], first: Written, text: Text) -> None:
    same = all(one.differing_characters(first) == 0 for one in texts)
    note = "" if any(one is first for one in texts) else ": the same text" if same else ": another text"
    axes.set_title(f"Written by {title}{note}")
    axes.set_axis_off()
    lines = "\n\n".join(map(text.decoded, texts[0].texts)).splitlines()
    folded = [piece for line in lines for piece in textwrap.wrap(line, COLUMNS) or [""]]
    shown = "\n".join(folded[:14]).replace("$", r"\$")  # matplotlib parses $ as math
    axes.text(0, 1, shown, family="monospace", size=9.5, va="top", transform=axes.transAxes, linespacing=1.25)
