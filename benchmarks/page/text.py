"""Sections of one machine: versions, charts and counts for docs/benchmarks.md, all tables for the site."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page.tables import losses, seeds, tables
from benchmarks.results.figures import TITLES
from benchmarks.results.schema import Run

Machines = Mapping[str, Sequence[Run]]  # runs by the name of their file

FRAMEWORKS = ("torch", "tensorflow", "jax")  # packages whose runs state their version in more detail
BUSY = 0.5  # load average per core above which other work ran on the machine


def load(folder: Path) -> Machines:
    """The runs in a folder: GPUs first, and of these the largest run first."""
    machines = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}

    def order(name: str) -> tuple[bool, int]:
        runs = machines[name]
        return "gpu" not in environment(runs), -sum(len(run["results"]) for run in runs)

    return {name: machines[name] for name in sorted(machines, key=order)}


def full_page(name: str, runs: Sequence[Run]) -> str:
    """The page of one machine with all entries."""
    parts = [
        f"# {heading(name, runs)}",
        facts(runs),
        *seeds(runs),
        "## Where fusedops is slower",
        losses(runs),
        "## All entries",
        *tables(runs),
    ]
    return "\n\n".join(parts) + "\n"


def heading(name: str, runs: Sequence[Run]) -> str:
    machine = environment(runs)
    return f"{machine.get('gpu') or '{cores} cores of {cpu}'.format(**machine)} ({name})"


def facts(runs: Sequence[Run]) -> str:
    """The versions, the machine, and the notes of the runs."""
    found = environment(runs)
    versions = {"fusedops": found["fusedops"], "Python": found["python"]}
    versions |= {name: version for name, version in found.get("versions", {}).items() if name not in FRAMEWORKS}
    versions |= {TITLES[run["framework"]]: run["environment"].get("version", "not measured") for run in runs}
    words = [", ".join(f"{name} {version}" for name, version in sorted(versions.items(), key=lambda x: x[0].lower()))]
    if "gpu" in found:
        words.append(f"Driver {found['driver']}, {found['cores']} cores of {found['cpu']}")
    clocks = [
        f"{when} SM {clock['sm']} of {clock['sm_most']} MHz, memory {clock['memory']} of {clock['memory_most']} MHz"
        for when, clock in found.get("clocks", {}).items()
    ]
    if clocks:
        words.append(f"Clocks {'; '.join(clocks)}")
    if "date" in found:
        words.append(f"Measured at {found['date']}")
    load = found.get("load", [0.0])[0]  # of the first process: later ones see the load of the earlier
    if load > BUSY * found["cores"]:
        words.append(f"**Other work ran on this machine** (load {load:g}): times may be longer and spread wider")
    if any(run.get("quick") for run in runs):
        words.append("**A quick run**: few rounds, rough figures")
    words += [note for run in runs for note in run["notes"]]
    return ".\n".join(words) + "."


def environment(runs: Sequence[Run]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = runs[0]["environment"]
    return found
