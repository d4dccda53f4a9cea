"""Goals and tables, from what the runs wrote."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.cases import SECTIONS

Run = Mapping[str, Any]
TITLES = {"torch": "PyTorch", "tf": "TensorFlow"}
COLOURS = {"met": "green", "within noise": "yellow", "missed": "red", "not measured": "dim"}
HOST_BOUND = 0.9  # the host issued calls for this part of the time: it was not the GPU that was measured


@dataclass(frozen=True)
class Verdict:
    text: str  # what was compared, and the figure
    goal: str
    verdict: str


def seconds(contender: Mapping[str, Any] | None) -> float | None:
    samples = contender.get("samples") if contender else None
    return statistics.median(samples) if samples else None


def verdicts(runs: Sequence[Run], run: Run, result: Mapping[str, Any]) -> list[Verdict]:
    goals = [goal for goal in result["goals"] if goal["framework"] == run["framework"]]
    return [verdict for goal in goals if (verdict := _verdict(runs, result, goal))]


def _verdict(runs: Sequence[Run], result: Mapping[str, Any], goal: Mapping[str, Any]) -> Verdict | None:
    peers = result
    there = goal["against_framework"]
    if there:
        found = [x for run in runs if run["framework"] == there for x in run["results"] if x["key"] == result["key"]]
        if not found:
            return None
        peers = found[0]
    contender, peer = result["contenders"].get(goal["contender"]), peers["contenders"].get(goal["against"])
    name = f"{TITLES[there]}'s" if there else goal["against"]
    wanted = f"time ≤ {1 / goal['speed']:.3g} × {name}" if goal["as_time"] else f"speed ≥ {goal['speed']:.3g} × {name}"
    time, peer_time = seconds(contender), seconds(peer)
    if not contender or not peer or not time or not peer_time:
        return Verdict("", wanted, "not measured")

    speeds = _speeds(contender, peer, paired=not there)
    speed = statistics.median(speeds)
    verdict = "met" if speed >= goal["speed"] else "missed"
    if verdict == "missed" and speed + _uncertainty(speeds) >= goal["speed"]:
        verdict = "within noise"
    text = f"{1 / speed if goal['as_time'] else speed:.3g} × {name}"
    floor = seconds(result["contenders"].get(goal["floor"]))
    if floor:
        wanted += f", or the {goal['floor']}"
        text += f", {time / floor:.3g} × floor"
        verdict = "met" if time <= 1.05 * floor else verdict
    if max(contender.get("host_share", 0), peer.get("host_share", 0)) > HOST_BOUND:
        text += ", bound by the host"
    if goal["contender"] != "fusedops":
        text = f"{goal['contender']}: {text}"
    return Verdict(text, wanted, verdict)


def _speeds(contender: Mapping[str, Any], peer: Mapping[str, Any], paired: bool) -> list[float]:
    """Of the contender over the peer's, round by round where they took turns."""
    work = contender["work"] / peer["work"]
    if paired:
        return [work * b / a for a, b in zip(contender["samples"], peer["samples"], strict=True)]
    return [work * statistics.median(peer["samples"]) / sample for sample in contender["samples"]]


def _uncertainty(values: Sequence[float]) -> float:
    """Twice the standard error of the median, as of a normal distribution with the same quartiles.

    At least 1 %, by which two measurements of one contender differ anyway; at most 10 %, or a busy machine excuses all.
    """
    lower, middle, upper = statistics.quantiles(values, n=4)
    return min(0.1 * middle, max(0.01 * middle, 1.86 * (upper - lower) / len(values) ** 0.5))


def _time(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value * 1e9:.4g} ns"


def _rate(contender: Mapping[str, Any], result: Mapping[str, Any], time: float) -> str:
    if result["section"] == "call":
        return ""
    rate = contender["work"] / time
    return f"{rate * 1e-9:.4g} GB/s" if result["unit"] == "B" else f"{rate * 1e-12:.3g} TFLOP/s"


def _cell(contender: Mapping[str, Any] | None, result: Mapping[str, Any]) -> str:
    if not contender:
        return ""
    time = seconds(contender)
    return f"{_time(time)}\n{_rate(contender, result, time)}".strip() if time else contender["problem"] or ""


def _name(result: Mapping[str, Any]) -> str:
    shape = "" if result["unit"] == "B" else " " + "×".join(map(str, result["shape"]))
    return f"{result['operator']} {result['variant']} {result['dtype']}{shape}"


def line(run: Run, result: Mapping[str, Any]) -> str:
    """One case, as it comes."""
    if "problem" in result:
        return f"{_name(result)}: {result['problem']}"
    cells = [f"{name} {_cell(x, result)}".replace("\n", ", ") for name, x in result["contenders"].items()]
    found = [f"{x.text} ({x.goal}): {x.verdict}" for x in verdicts([run], run, result)]
    return f"{_name(result)}: {'; '.join([*cells, *found])}"


def show(console: Console, runs: Sequence[Run]) -> None:
    """All tables, and how many goals were met."""
    count: dict[str, int] = dict.fromkeys(COLOURS, 0)
    for section, title in SECTIONS.items():
        for run in runs:
            results = [x for x in run["results"] if x["section"] == section]
            if results:
                console.print(_table(f"{title} ({TITLES[run['framework']]})", runs, run, results, count))
                console.print()
    for run in runs:
        for note in run["notes"]:
            console.print(note, markup=False)
    for fact in _facts(runs):
        console.print(fact, markup=False, highlight=False)
    parts = [f"[{COLOURS[verdict]}]{number} {verdict}[/]" for verdict, number in count.items() if number]
    console.print(f"Goals: {', '.join(parts) or 'none'}", highlight=False)


def _table(
    title: str, runs: Sequence[Run], run: Run, results: Sequence[Mapping[str, Any]], count: dict[str, int]
) -> Table:
    names = list(dict.fromkeys(name for result in results for name in result["contenders"]))
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for heading in ("measured", "goal"):
        table.add_column(heading)
    for result in results:
        found = verdicts(runs, run, result)
        for verdict in found:
            count[verdict.verdict] += 1
        cells = [escape(_cell(result["contenders"].get(name), result)) for name in names]
        measured = "\n".join(f"[{COLOURS[x.verdict]}]{x.text or x.verdict}[/]" for x in found)
        goals = "\n".join(f"[{COLOURS[x.verdict]}]{x.goal}: {x.verdict}[/]" for x in found)
        label = _name(result) + (f"\n{result['problem']}" if "problem" in result else "")
        table.add_row(escape(label), *cells, measured, goals)
    return table


def _facts(runs: Sequence[Run]) -> Iterable[str]:
    for run in runs:
        facts = run["environment"]
        gpu = f", {facts['gpu']}, driver {facts['driver']}" if "gpu" in facts else ""
        version = f"{TITLES[run['framework']]} {facts.get('version', 'not measured')}"
        machine = f"Python {facts['python']}, {facts['cores']} cores of {facts['cpu']}{gpu}"
        yield f"fusedops {facts['fusedops']}, {version}, {machine}"
