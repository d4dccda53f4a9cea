"""Whether the goals were met, from what the runs wrote."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cases.case import CALLS, GROWTH, PEERS

Run = Mapping[str, Any]
TITLES = {"torch": "PyTorch", "tf": "TensorFlow"}
HOST_BOUND = 0.9  # the host issued calls for this part of the time: it was not the GPU that was measured
NOT_SLOWER = 1.02  # times the fastest peer's time: two measurements of one contender differ by that


@dataclass(frozen=True)
class Verdict:
    text: str  # what was compared, and the figure
    goal: str
    verdict: str


def seconds(contender: Mapping[str, Any] | None) -> float | None:
    samples = contender.get("samples") if contender else None
    return statistics.median(samples) if samples else None


def spread(contender: Mapping[str, Any] | None) -> float:
    """Half of the distance between the quartiles, relative to the median."""
    samples = contender.get("samples") if contender else None
    if not samples or len(samples) < 2:
        return 0.0
    lower, middle, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return (upper - lower) / 2 / middle


def verdicts(runs: Sequence[Run], run: Run, result: Mapping[str, Any]) -> list[Verdict]:
    goals = [goal for goal in result["goals"] if goal["framework"] == run["framework"]]
    return [verdict for goal in goals if (verdict := _verdict(runs, result, goal))]


def fastest_peer(result: Mapping[str, Any]) -> str | None:
    """By name, of those whose results are right."""
    times = {name: time for name in PEERS if (time := seconds(result["contenders"].get(name)))}
    return min(times, key=times.__getitem__) if times else None


def times_of(result: Mapping[str, Any], against: str, ours: str = "fusedops") -> float | None:
    """How many times as long as the other ours takes for the same work, by medians."""
    times = [_seconds_for(result, name) for name in (ours, against)]
    return times[0] / times[1] if times[0] and times[1] else None


def floor_of(result: Mapping[str, Any]) -> float | None:
    """The seconds in which the copy beside this row moves as much."""
    return _seconds_for(result, "copy")


def is_of_host(result: Mapping[str, Any], contender: Mapping[str, Any]) -> bool:
    """Whether it was the host that was measured, where the GPU was meant."""
    return contender.get("host_share", 0) > HOST_BOUND and result["section"] not in ("python", *CALLS)


def _seconds_for(result: Mapping[str, Any], name: str) -> float | None:
    """The work of the row by that contender."""
    contender = result["contenders"].get(name)
    time = seconds(contender)
    return time * result["work"] / contender["work"] if contender and time else None


def not_slower(run: Run) -> str | None:
    """How many rows are not slower than the fastest peer, in a sentence."""
    found = []
    for result in run["results"]:
        peer = fastest_peer(result)
        if not peer or result["unit"] != "B" or result["section"] in (*CALLS, *GROWTH):
            continue  # calls have goals of their own, and small sizes are calls
        times = times_of(result, peer)
        if times:
            found.append((times, peer, result["key"]))
    if not found:
        return None
    good = sum(times <= NOT_SLOWER for times, _, _ in found)
    times, peer, key = max(found)
    return (
        f"{TITLES[run['framework']]}: in {good} of {len(found)} rows that move memory not slower than the fastest peer "
        f"within 2 %; worst: {key}, {times:.3g} times {peer}'s time"
    )


def _verdict(runs: Sequence[Run], result: Mapping[str, Any], goal: Mapping[str, Any]) -> Verdict | None:
    contender = result["contenders"].get(goal["contender"])
    time = seconds(contender)
    if goal["seconds"]:
        wanted = f"time ≤ {goal['seconds'] * 1e6:.3g} µs"
        if not time:
            return Verdict("", wanted, "not measured")
        return Verdict(f"{time * 1e6:.3g} µs", wanted, "met" if time <= goal["seconds"] else "missed")

    peers, against, there = result, goal["against"], goal["against_framework"]
    if there:
        found = [x for run in runs if run["framework"] == there for x in run["results"] if x["key"] == result["key"]]
        if not found:
            return None
        peers = found[0]
    name = f"{TITLES[there]}'s" if there else "floor" if against == "copy" and goal["as_time"] else against
    wanted = f"time ≤ {1 / goal['speed']:.3g} × {name}" if goal["as_time"] else f"speed ≥ {goal['speed']:.3g} × {name}"
    if against == "fastest peer":
        name = against = fastest_peer(result) or against
    peer = peers["contenders"].get(against)
    if (result["contenders"] and contender is None) or (peers["contenders"] and peer is None and against in PEERS):
        return None  # --quick leaves compilers out, and libraries may not be there
    if not contender or not peer or not time or not seconds(peer):
        return Verdict("", wanted, "not measured")

    speeds = _speeds(contender, peer, paired=not there)
    speed = statistics.median(speeds)
    verdict = "met" if speed >= goal["speed"] else "missed"
    if verdict == "missed" and speed + _uncertainty(speeds) >= goal["speed"]:
        verdict = "within noise"
    text = f"{1 / speed if goal['as_time'] else speed:.3g} × {name}"
    floor = seconds(result["contenders"].get(goal["or_floor"]))
    if floor:
        wanted += f", or the {goal['or_floor']}"
        text += f", {time / floor:.3g} × floor"
        verdict = "met" if time <= 1.05 * floor else verdict
    if is_of_host(result, contender) or is_of_host(result, peer):
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
