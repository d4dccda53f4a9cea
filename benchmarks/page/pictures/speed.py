"""The chart of the README: speed relative to PyTorch's eager mode, of operators and of models on one GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt

from benchmarks.page.pictures import style
from benchmarks.page.summary import OURS

NAME = "speed.png"
HEIGHT = 0.26  # of a bar; entries are 1 apart
Speeds = Mapping[str, Mapping[str, float]]  # by entry, and by implementation


def draw(panels: Mapping[str, Speeds], path: Path, results: Sequence[Any]) -> None:
    """Draws a panel of bars for each title. `results` are what the speeds follow from; the file stores their digest."""
    entries = max(len(speeds) for speeds in panels.values())
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4.4 * len(panels), 1.3 + 0.36 * entries), squeeze=False, layout="constrained"
    )
    names = list(dict.fromkeys(name for speeds in panels.values() for each in speeds.values() for name in each))
    for ax, (title, speeds) in zip(axes[0], panels.items(), strict=True):
        for place, each in enumerate(speeds.values()):
            for name, speed in each.items():
                offset = HEIGHT * (names.index(name) - (len(names) - 1) / 2)
                ax.barh(place + offset, speed, HEIGHT, color=style.LOOKS[name][0])
                if name == OURS:
                    ax.text(speed + 0.03, place + offset, f"{speed:.1f}", va="center", fontsize=9)
        ax.axvline(1, color=style.GREY, linewidth=1)
        ax.set_yticks(range(len(speeds)), list(speeds))
        ax.set_ylim(len(speeds) - 0.4, -0.6)
        ax.set_title(title)
        ax.margins(x=0.08)
        ax.grid(True, axis="x")
    handles = [plt.Rectangle((0, 0), 1, 1, color=style.LOOKS[name][0]) for name in names]
    figure.legend(handles, names, loc="outside upper left", ncols=len(names))
    figure.supxlabel("times as fast as PyTorch's eager mode", fontsize=11)
    style.save(figure, path, results)
