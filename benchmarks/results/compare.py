"""Compares two runs: rows that became slower or faster by more than the spread of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.results.figures import TITLES, fastest_baseline, seconds, spread
from benchmarks.results.report import time_text
from benchmarks.results.schema import Row, Run

MIN_SPREAD = 0.02  # two runs of one program on an idle machine differ by this much


@dataclass(frozen=True)
class Move:
    framework: str
    key: str
    implementation: str
    old: float  # seconds
    new: float
    spread: float  # sum of both relative spreads
    baselines: (
        float | None
    )  # the fastest baseline's new time over its old one; near `times`, the machine itself changed

    @property
    def times(self) -> float:
        return self.new / self.old


def moves(old: Sequence[Run], new: Sequence[Run]) -> list[Move]:
    """The moves of fusedops's implementations, the greatest slowdown first."""
    found = [move for before, now, framework in _pairs(old, new) for move in _moves(framework, before, now)]
    return sorted(found, key=lambda move: move.times, reverse=True)


def show(console: Console, old: Sequence[Run], new: Sequence[Run]) -> None:
    found = moves(old, new)
    count = sum(1 for _ in _pairs(old, new))
    for title, colour, some in (
        ("Slower than before", "red", [move for move in found if move.times > 1]),
        ("Faster than before", "green", [move for move in found if move.times < 1][::-1]),
    ):
        if some:
            console.print(_table(title, colour, some))
    total = sum(len(run["results"]) for run in new)
    console.print(
        f"{len({(move.framework, move.key) for move in found})} of {count} rows that both runs have moved by more than "
        f"their spread; {total - count} rows are new",
        highlight=False,
        soft_wrap=True,
    )


def _pairs(old: Sequence[Run], new: Sequence[Run]) -> Iterator[tuple[Row, Row, str]]:
    before = {(run["framework"], row["key"]): row for run in old for row in run["results"]}
    for run in new:
        for row in run["results"]:
            other = before.get((run["framework"], row["key"]))
            if other:
                yield other, row, run["framework"]


def _moves(framework: str, old: Row, new: Row) -> Iterator[Move]:
    common = {name: x for name, x in new["implementations"].items() if seconds(old["implementations"].get(name))}
    baseline = fastest_baseline({"implementations": common})
    moved = (seconds(common[baseline]) or 0) / (seconds(old["implementations"][baseline]) or 1) if baseline else None
    for name, implementation in new["implementations"].items():
        other = old["implementations"].get(name)
        before, now = seconds(other), seconds(implementation)
        if not name.startswith("fusedops") or not before or not now:
            continue
        both = max(MIN_SPREAD, spread(other) + spread(implementation))
        if not 1 / (1 + both) <= now / before <= 1 + both:
            yield Move(framework, new["key"], name, before, now, both, moved)


def _table(title: str, colour: str, some: Sequence[Move]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in ("", "row", "implementation"):
        table.add_column(heading, no_wrap=True)
    for heading in ("before", "now", "times", "spread", "fastest baseline"):
        table.add_column(heading, justify="right", no_wrap=True)
    for move in some:
        baselines = f"{move.baselines:.3g}" if move.baselines else ""
        times = (time_text(move.old), time_text(move.new))
        cells = (TITLES[move.framework], escape(move.key), escape(move.implementation), *times)
        table.add_row(*cells, f"[{colour}]{move.times:.3g}[/]", f"±{move.spread:.0%}", baselines)
    return table
