"""The text of docs/benchmarks.md, with its pictures: the results of each machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases.case import SECTIONS
from benchmarks.page.pictures import PICTURES
from benchmarks.page.tables import losses, seeds, tables
from benchmarks.results.figures import TITLES
from benchmarks.results.schema import Run

FRAMEWORKS = ("torch", "tensorflow")  # packages whose versions are taken from the runs, with more detail
BUSY = 0.5  # load average before the run, as a fraction of the cores
FOLDER = "benchmarks"  # folder in docs of runs and pictures

BEGINNING = """\
# Benchmarks

What a user gains: every operator of fusedops beside what would be used instead, in one run on one machine. `make
bench` measures, `make bench-report` writes this page from the runs in [`docs/benchmarks/`](benchmarks), whose names are
in the headings; no figure here was typed. What was tried, and why a kernel is as fast as it is:
[performance](performance.md).

## How to read it

- **Time** is the median of many rounds. In each, all contenders of a row take a turn on the same inputs, in random
  order, in one process for each framework. A contender whose result is not that of the formula in float64, within the
  dtype's precision, shows `wrong` in place of a time; one that does not run, `error`. Keras's own layers and whole
  models are not checked so.
- **Spread** is half of the distance between the quartiles of our times, relative to the median. Where a peer is
  faster, but by less than both spreads together, that is said: it may be chance.
- **Floor** is the time in which a copy, measured beside the row, moves as many bytes as the operator must: each input
  read once, each output written once. What a cache still holds, stores past the caches, or more reads than writes
  may be faster than the copy: then × floor is below 1, and the picture's fraction above.
- **Peers** are eager operators, `torch.compile` with static shapes, Liger and QuACK for PyTorch; eager operators, a
  graph, XLA and Keras's layers for TensorFlow. For matrix products they are cuBLAS, or the CPU's library, through the
  framework; for attention PyTorch's own, as it chooses, and by cuDNN and by flash attention alone. Of linear layers
  `products` is no peer: it is the time of their matrix products alone.
- **fusedops, expression** is the same as [an expression of one's own](your-own-operator.md), and `biased_gate` is
  nothing else: `gelu_tanh(x + bias) * up`. A first use takes from the text to the result, with a kernel that is
  compiled or, from the cache, found on the disk.
- **On a GPU**, PyTorch's times are the GPU's own, by events: it sleeps until the host has issued the calls. Those of a
  call are the host's. TensorFlow has no events: its times are the host's, with one synchronization behind many calls.
  † marks those for nine tenths of which, or more, the host was issuing calls, or waited in one: it was the host that
  was measured.
- **Caches**: on a GPU, inputs that fit into its cache rotate in PyTorch, so that each call reads memory; on a CPU they
  are the same at each call, as in the rows of the seeds.
- **Memory** is the most that a call holds beyond its inputs; of whole models, all that is in use. On a CPU nobody
  counts.
- **Not compared**: tuning beyond a peer's defaults (`max-autotune`), several GPUs, and anything but Llama's layers as
  a whole. Ratios hold between contenders of a row; times of two machines, or of two runs, are of different
  circumstances.
"""
ENDING = """\
## Repeat it

    make bench                                                     # measures, writes build/bench/results.json
    make bench-report ARGS="here=build/bench/results.json"         # puts it on this page, as one more machine
    make bench ARGS="--compare docs/benchmarks/cpu.json"           # or says which rows have moved
    make bench-check                                               # only: has fusedops become slower on this CPU?

`make bench ARGS=--help` lists operators, dtypes and shapes to choose from.
"""


def page(folder: Path) -> str:
    """The text of the page. Draws the pictures into `folder`, which has the runs."""
    machines = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}

    def first(name: str) -> tuple[bool, int]:  # GPUs first; then by the number of rows
        runs = machines[name]
        return "gpu" not in _environment(runs), -sum(len(run["results"]) for run in runs)

    names = sorted(machines, key=first)
    parts = [
        BEGINNING + _unmeasured_sections(machines),
        *(_machine(name, machines[name], folder) for name in names),
        ENDING,
    ]
    return "\n".join(parts)


def _unmeasured_sections(machines: Mapping[str, Sequence[Run]]) -> str:
    """A list item of the sections that no run has, such as sections newer than the runs."""
    found = {row["section"] for runs in machines.values() for run in runs for row in run["results"]}
    titles = [x.title.partition(":")[0] for section, x in SECTIONS.items() if section not in found]
    return f"- **Not in these runs**, though `make bench` measures it: {'; '.join(titles)}.\n" if titles else ""


def _machine(name: str, runs: Sequence[Run], folder: Path) -> str:
    missing, pictures = [], []
    for kind, (title, draw) in PICTURES.items():
        picture = folder / f"{name}-{kind}.png"
        problem = draw(runs, picture)
        if problem:
            picture.unlink(missing_ok=True)
            missing.append(f"Not drawn: {problem}.")
        else:
            pictures.append(f"![{title}]({FOLDER}/{picture.name})")
    notes = [f"- {note}" for run in runs for note in run["notes"]]
    parts = [
        f"## {_title(runs)} ({name})",
        _facts(runs),
        "\n".join(notes),
        *pictures,
        *missing,
        "### The seeds of the field",
        "The first kernels that many write: relu, and a·x + b as one kernel in place of two; of 1 048 576 float32.",
        seeds(runs),
        "### Where fusedops is slower",
        losses(runs),
        "### All rows",
        *tables(runs),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _title(runs: Sequence[Run]) -> str:
    facts = _environment(runs)
    return facts.get("gpu") or f"{facts['cores']} cores of {facts['cpu']}"


def _facts(runs: Sequence[Run]) -> str:
    """Versions, the machine, and reservations about the run."""
    facts = _environment(runs)
    versions = {"fusedops": facts["fusedops"], "Python": facts["python"]}
    versions |= {name: version for name, version in facts.get("versions", {}).items() if name not in FRAMEWORKS}
    versions |= {TITLES[run["framework"]]: run["environment"].get("version", "not measured") for run in runs}
    words = [", ".join(f"{name} {version}" for name, version in sorted(versions.items(), key=lambda x: x[0].lower()))]
    if "gpu" in facts:
        words.append(f"Driver {facts['driver']}, {facts['cores']} cores of {facts['cpu']}")
    for when, clocks in facts.get("clocks", {}).items():
        text = f"SM {clocks['sm']} of {clocks['sm_most']} MHz, memory {clocks['memory']} of {clocks['memory_most']} MHz"
        words.append(f"Clocks {when}: {text}")
    if "date" in facts:
        words.append(f"Measured at {facts['date']}")
    load = facts.get("load", [0.0])[0]  # from the first process, whose own load later processes see
    if load > BUSY * facts["cores"]:
        words.append(
            f"**Other work ran on this machine** (load {load:g}): times may be longer, and spread wider, than need be"
        )
    if any(run.get("quick") for run in runs):
        words.append("**A quick run**: few rounds, rough figures")
    return ".\n".join(words) + "."


def _environment(runs: Sequence[Run]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = runs[0]["environment"]
    return found
