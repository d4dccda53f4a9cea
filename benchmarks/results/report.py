"""Prints the tables of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.cases.case import CALLS, FIRST_USE, SECTIONS
from benchmarks.results.figures import TITLES, fastest_baseline, floor_of, seconds, spread, times_of
from benchmarks.results.goals import not_slower, verdicts
from benchmarks.results.schema import Row, Run

COLOURS = {"met": "green", "within noise": "yellow", "missed": "red", "not measured": "dim"}
FLOOR = "floor"
NOT_RATED = (FIRST_USE, *CALLS)  # sections without bytes per second
UNITS = {"B": (1e9, "GB/s"), "FLOP": (1e12, "TFLOP/s"), "token": (1e3, "thousand tokens/s"), "step": (1.0, "steps/s")}


def time_text(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value * 1e9:.4g} ns"


def _rate(work: float, row: Row, time: float) -> str:
    if row["section"] in NOT_RATED:
        return ""
    size, unit = UNITS[row["unit"]]
    return f"{work / time / size:.4g} {unit}"


def _cell(implementation: Mapping[str, Any] | None, row: Row) -> str:
    if not implementation:
        return ""
    time = seconds(implementation)
    if not time:
        return (implementation["problem"] or "")[:60]
    lines = [_measured(implementation), _rate(implementation["work"], row, time), memory_text(implementation)]
    return "\n".join(filter(None, lines))


def _measured(implementation: Mapping[str, Any]) -> str:
    percent = 100 * spread(implementation)
    return f"{time_text(seconds(implementation) or 0)} ±{percent:.{0 if percent >= 9.95 else 1}f}%"


def memory_text(implementation: Mapping[str, Any]) -> str:
    """The memory of a call: for models including weights and inputs, else beyond the inputs; empty below 1 MiB."""
    used = implementation.get("peak", implementation.get("memory", 0))
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if used >= size:
            return f"{used / size:.3g} {unit}"
    return ""


def _floor(row: Row) -> str:
    """The time in which the copy moves as many bytes, and its bandwidth."""
    time = floor_of(row)
    return f"{time_text(time)}\n{_rate(row['work'], row, time)}" if time else ""


def _ours(row: Row) -> str:
    cell, times = _cell(row["implementations"].get("fusedops"), row), times_of(row, "copy")
    return f"{cell}\n{times:.3g} × floor" if times else cell


def _baseline(row: Row) -> str:
    """The fastest baseline, and fusedops's time over its time."""
    name = fastest_baseline(row)
    times = times_of(row, name) if name else None
    return f"{name}\nours: {times:.3g} ×" if times else name or ""


def _name(row: Row) -> str:
    shape = "×".join(map(str, row["shape"]))
    dtype = row["dtype"] + (f", parameters {row['parameters']}" if row["parameters"] else "")
    moved = f", {row['work'] * 1e-6:.3g} MB" if row["unit"] == "B" and row["section"] not in NOT_RATED else ""
    return f"{row['operator']} {row['variant']}\n{dtype} {shape}{moved}"


def line(run: Run, row: Row) -> str:
    """One line on a measured row."""
    name = _name(row).replace("\n", " ")
    if "problem" in row:
        return f"{name}: {row['problem']}"
    cells = [f"{implementation} {_cell(x, row)}" for implementation, x in row["implementations"].items()]
    found = [f"{x.text} ({x.goal}): {x.verdict}" for x in verdicts([run], run, row)]
    return f"{name}: {'; '.join([*cells, *found])}".replace("\n", ", ")


def show(console: Console, runs: Sequence[Run]) -> None:
    """Prints all tables, and the number of goals met."""
    count: dict[str, int] = dict.fromkeys(COLOURS, 0)
    for section, about in SECTIONS.items():
        for run in runs:
            rows = [x for x in run["results"] if x["section"] == section]
            if rows:
                console.print(_table(f"{about.title} ({TITLES[run['framework']]})", runs, run, rows, count))
                console.print()
    for run in runs:
        for note in run["notes"]:
            console.print(note, markup=False)
    for fact in _facts(runs):
        console.print(fact, markup=False, highlight=False)
    parts = [f"[{COLOURS[verdict]}]{number} {verdict}[/]" for verdict, number in count.items() if number]
    console.print(f"Goals: {', '.join(parts) or 'none'}", highlight=False)
    for run in runs:
        sentence = not_slower(run)
        if sentence:
            console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _table(title: str, runs: Sequence[Run], run: Run, rows: Sequence[Row], count: dict[str, int]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row["implementations"]))
    others = [name for name in names if name not in ("fusedops", "copy")]
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    # Without a copy there is no floor: omit its column.
    columns = ([FLOOR] if "copy" in names else []) + ["fusedops", "fastest baseline", *others]
    for name in columns:
        table.add_column(name, justify="right")
    goals_of = [verdicts(runs, run, row) for row in rows]
    for heading in ("measured", "goal") if any(goals_of) else ():
        table.add_column(heading)
    for row, found in zip(rows, goals_of, strict=True):
        for verdict in found:
            count[verdict.verdict] += 1
        cells = [_floor(row)] if "copy" in names else []
        cells += [_ours(row), _baseline(row)]
        cells += [_cell(row["implementations"].get(name), row) for name in others]
        measured = "\n".join(f"[{COLOURS[x.verdict]}]{x.text or x.verdict}[/]" for x in found)
        goals = "\n".join(f"[{COLOURS[x.verdict]}]{x.goal}: {x.verdict}[/]" for x in found)
        label = _name(row) + (f"\n{row['problem']}" if "problem" in row else "")
        table.add_row(escape(label), *map(escape, cells), *((measured, goals) if any(goals_of) else ()))
    return table


def _facts(runs: Sequence[Run]) -> Iterable[str]:
    for run in runs:
        facts = run["environment"]
        gpu = f", {facts['gpu']}, driver {facts['driver']}" if "gpu" in facts else ""
        gpu += "".join(
            f", clocks {when}: {x['sm']} MHz, memory {x['memory']} MHz" for when, x in facts.get("clocks", {}).items()
        )
        version = f"{TITLES[run['framework']]} {facts.get('version', 'not measured')}"
        machine = f"Python {facts['python']}, {facts['cores']} cores of {facts['cpu']}{gpu}"
        yield f"fusedops {facts['fusedops']}, {version}, {machine}"
