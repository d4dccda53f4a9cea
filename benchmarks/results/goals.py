"""Verdicts on the goals of a row."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cases.case import CALLS, FIRST_USE, GROWTH
from benchmarks.results.figures import BASELINES, NOT_SLOWER, TITLES, fastest_baseline, is_host_bound, seconds, times_of
from benchmarks.results.schema import Row, Run


@dataclass(frozen=True)
class Verdict:
    text: str  # the figure, and the implementations compared
    goal: str
    verdict: str


def verdicts(runs: Sequence[Run], run: Run, row: Row) -> list[Verdict]:
    goals = [goal for goal in row["goals"] if goal["framework"] == run["framework"]]
    return [verdict for goal in goals if (verdict := _verdict(runs, row, goal))]


def not_slower(run: Run) -> str | None:
    """A sentence on the number of rows that are not slower than the fastest baseline."""
    found = []
    for row in run["results"]:
        baseline = fastest_baseline(row)
        if not baseline or row["unit"] != "B" or row["section"] in (FIRST_USE, *CALLS, *GROWTH):
            continue  # calls have other goals, and small sizes are dominated by calls
        times = times_of(row, baseline)
        if times:
            found.append((times, baseline, row["key"]))
    if not found:
        return None
    good = sum(times <= NOT_SLOWER for times, _, _ in found)
    times, baseline, key = max(found)
    return (
        f"{TITLES[run['framework']]}: in {good} of {len(found)} rows that move memory not slower than the "
        f"fastest baseline within 2 %; worst: {key}, {times:.3g} times {baseline}'s time"
    )


def _verdict(runs: Sequence[Run], row: Row, goal: Mapping[str, Any]) -> Verdict | None:
    implementation = row["implementations"].get(goal["implementation"])
    time = seconds(implementation)
    if goal["seconds"]:
        wanted = f"time ≤ {goal['seconds'] * 1e6:.3g} µs"
        if not time:
            return Verdict("", wanted, "not measured")
        return Verdict(f"{time * 1e6:.3g} µs", wanted, "met" if time <= goal["seconds"] else "missed")

    baselines, against, other = row, goal["against"], goal["against_framework"]
    if other:
        found = [x for run in runs if run["framework"] == other for x in run["results"] if x["key"] == row["key"]]
        if not found:
            return None
        baselines = found[0]
    name = f"{TITLES[other]}'s" if other else "floor" if against == "copy" and goal["as_time"] else against
    wanted = f"time ≤ {1 / goal['speed']:.3g} × {name}" if goal["as_time"] else f"speed ≥ {goal['speed']:.3g} × {name}"
    if against == "fastest baseline":
        name = against = fastest_baseline(row) or against
    baseline = baselines["implementations"].get(against)
    if (row["implementations"] and implementation is None) or (
        baselines["implementations"] and baseline is None and against in BASELINES
    ):
        return None  # --quick leaves compilers out, and libraries may be missing
    if not implementation or not baseline or not time or not seconds(baseline):
        return Verdict("", wanted, "not measured")

    speeds = _speeds(implementation, baseline, paired=not other)
    speed = statistics.median(speeds)
    verdict = "met" if speed >= goal["speed"] else "missed"
    if verdict == "missed" and speed + _uncertainty(speeds) >= goal["speed"]:
        verdict = "within noise"
    text = f"{1 / speed if goal['as_time'] else speed:.3g} × {name}"
    floor = seconds(row["implementations"].get(goal["or_floor"]))
    if floor:
        wanted += f", or the {goal['or_floor']}"
        text += f", {time / floor:.3g} × floor"
        verdict = "met" if time <= 1.05 * floor else verdict
    if is_host_bound(row, implementation) or is_host_bound(row, baseline):
        text += ", bound by the host"
    if goal["implementation"] != "fusedops":
        text = f"{goal['implementation']}: {text}"
    return Verdict(text, wanted, verdict)


def _speeds(implementation: Mapping[str, Any], baseline: Mapping[str, Any], paired: bool) -> list[float]:
    """The implementation's speed over the baseline's; per round if they took turns."""
    work = implementation["work"] / baseline["work"]
    if paired:
        return [work * b / a for a, b in zip(implementation["samples"], baseline["samples"], strict=True)]
    return [work * statistics.median(baseline["samples"]) / sample for sample in implementation["samples"]]


def _uncertainty(values: Sequence[float]) -> float:
    """Twice the standard error of the median of a normal distribution with the same quartiles.

    At least 1 %, by which two measurements of one implementation differ anyway. At most 10 %, lest a busy machine
    excuse any result.
    """
    lower, middle, upper = statistics.quantiles(values, n=4)
    return min(0.1 * middle, max(0.01 * middle, 1.86 * (upper - lower) / len(values) ** 0.5))
