"""Compares ratios with the committed ones, and updates their file."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.guard import ratio
from benchmarks.implementations import side_of
from benchmarks.measuring.environment import environment

RATIOS = Path(__file__).with_name("ratios.json")
LOSS = 1.25  # highest allowed multiple of the committed ratio
RETRIES = 2
PAUSE = 3  # seconds before a retry
UPDATES = 3  # number of measurements, whose median is written
UPDATE = "make bench-check ARGS=--update"


def judge(framework: str, path: Path) -> None:
    """Ends the process with status 1 if anything became slower."""
    here, rows = _rows(framework)
    known = _read(path).get(framework, {})
    judged = here in known
    committed = known[here] if judged else next(iter(known.values()), {})
    for name in rows:
        if name not in committed:
            print(f"not judged: {name} has no ratio: {UPDATE}")
    problems = problems_of(rows, committed, RETRIES if judged else 0)
    if not judged:
        others = "; ".join(known) or "nothing"
        problems.append(f"not judged: the ratios are those of {others}. Of this machine: {UPDATE}")
    print("\n".join(problems), end="\n" * bool(problems))
    sys.exit(judged and bool(problems))


def update(framework: str, path: Path) -> None:
    here, rows = _rows(framework)
    found = {name: statistics.median(measure() for _ in range(UPDATES)) for name, measure in rows.items()}
    known = _read(path)
    known.setdefault(framework, {})[here] = {name: round(value, 3) for name, value in found.items()}
    path.write_text(json.dumps(known, indent=1) + "\n")
    print(f"{len(found)} ratios written to {path}")


def problems_of(
    rows: Mapping[str, Callable[[], float]], committed: Mapping[str, float], retries: int = RETRIES
) -> list[str]:
    """Measures and prints each committed ratio. Returns sentences on problems."""
    problems = [f"{name} has a ratio and is not measured: {UPDATE}" for name in committed if name not in rows]
    lost = {name: float("inf") for name in rows if name in committed}
    for turn in range(1 + retries):
        if turn and lost:
            print(f"measured again: {len(lost)}", flush=True)
            time.sleep(PAUSE)
        for name in list(lost):
            found = rows[name]()
            print(f"{name:40} {found:.3f}, committed {committed[name]:.3f}", flush=True)
            lost[name] = min(lost[name], found / committed[name])
            if lost[name] <= LOSS:
                del lost[name]
    allowed = f"times the committed ratio; at most {LOSS} is allowed"
    return problems + [f"slower: {name}: {times:.2f} {allowed}" for name, times in lost.items()]


def _rows(framework: str) -> tuple[str, dict[str, Callable[[], float]]]:
    """A description of framework and processor, and for each ratio the function that measures it."""
    side = side_of(framework)
    here = f"{side.TITLE} {side.version()}, {environment()['cpu']}"
    print(f"{here}: time over that of the framework's own operators, on one thread", flush=True)
    pairs = ratio.pairs(framework)
    return here, {ratio.name_of(case, against): partial(ratio.measured, side, case, against) for case, against in pairs}


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found
