"""The table of training steps: milliseconds of each contender, and how many times as fast a converted model is."""

from __future__ import annotations

from collections.abc import Mapping

LIGER = "Liger"
EAGER = ("before", "converted")
COMPILED = ("before, compiled", "converted, compiled")
CONTENDERS = (*EAGER, *COMPILED, LIGER)

Times = Mapping[str, float]  # seconds by contender

_RATIOS = ((EAGER, "times as fast"), ((LIGER, "converted"), "… as Liger"), (COMPILED, "compiled: times as fast"))
HEAD = [
    f"| family | {' | '.join(CONTENDERS)} | {' | '.join(title for _, title in _RATIOS)} |",
    "| --- |" + " --- |" * (len(CONTENDERS) + len(_RATIOS)),
]


def line(family: str, times: Times) -> str:
    cells = [f"{times[each] * 1e3:.2f}" if each in times else "" for each in CONTENDERS]
    for (before, after), _ in _RATIOS:
        cells.append(f"{times[before] / times[after]:.2f}" if before in times and after in times else "")
    return f"| {family} | {' | '.join(cells)} |"
