"""The table of training steps: milliseconds of each contender, and the speedup of converted models."""

from __future__ import annotations

from collections.abc import Mapping

LIGER = "Liger"
EAGER = ("before", "converted")
COMPILED = ("before, compiled", "converted, compiled")

Times = Mapping[str, float]  # seconds by contender

_RATIOS = {
    "times as fast": EAGER,
    "… as Liger": (LIGER, "converted"),
    "compiled: times as fast": COMPILED,
}


def table(families: Mapping[str, Times]) -> list[str]:
    """The table's lines, without contenders that no family has."""
    measured = {name for times in families.values() for name in times}
    contenders = [name for name in (*EAGER, LIGER, *COMPILED) if name in measured]
    ratios = {title: both for title, both in _RATIOS.items() if measured.issuperset(both)}
    lines = ["| family | " + " | ".join([*contenders, *ratios]) + " |"]
    lines.append("| --- |" + " --- |" * (len(contenders) + len(ratios)))
    for family, times in families.items():
        cells = [f"{times[name] * 1e3:.2f}" if name in times else "" for name in contenders]
        cells += [f"{times[a] / times[b]:.2f}" if times.keys() >= {a, b} else "" for a, b in ratios.values()]
        lines.append(f"| {family} | {' | '.join(cells)} |")
    return lines
