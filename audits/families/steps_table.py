"""The table of training steps: milliseconds of each implementation, and the speedup of converted models."""

from __future__ import annotations

from collections.abc import Mapping

LIGER = "Liger"
EAGER = ("before", "converted")
COMPILED = ("before, compiled", "converted, compiled")

Times = Mapping[str, float]  # seconds by implementation

_RATIOS = {
    "speedup": EAGER,
    "speedup over Liger": (LIGER, "converted"),
    "compiled: speedup": COMPILED,
}


def table(families: Mapping[str, Times]) -> list[str]:
    """The table's lines, without implementations that no family has."""
    measured = {name for times in families.values() for name in times}
    implementations = [name for name in (*EAGER, LIGER, *COMPILED) if name in measured]
    ratios = {title: both for title, both in _RATIOS.items() if measured.issuperset(both)}
    lines = ["| family | " + " | ".join([*implementations, *ratios]) + " |"]
    lines.append("| --- |" + " --- |" * (len(implementations) + len(ratios)))
    for family, times in families.items():
        cells = [f"{times[name] * 1e3:.2f}" if name in times else "" for name in implementations]
        cells += [f"{times[a] / times[b]:.2f}" if times.keys() >= {a, b} else "" for a, b in ratios.values()]
        lines.append(f"| {family} | {' | '.join(cells)} |")
    return lines
