"""Measures one framework's cases, in a separate process."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.cases.case import SECTIONS, Case
from benchmarks.implementations import side_of
from benchmarks.measuring.contest import is_usable, measured, try_build
from benchmarks.measuring.journal import Journal
from benchmarks.measuring.progress import shown
from benchmarks.measuring.timing import Effort
from fusedops.loading import FRAMEWORKS, fault

SETUP = 0.5  # approximate seconds of a case besides its effort: inputs, the reference, first calls


def effort_of(case: Case, quick: bool) -> Effort:
    """The rounds and time for a case."""
    effort = SECTIONS[case.section].effort
    if not quick:
        return effort
    max_rounds = 3 if effort.min_rounds == effort.max_rounds else effort.max_rounds
    return replace(effort, total=min(0.1, effort.total), min_rounds=3, max_rounds=max_rounds, min_calls=1)


def measure(
    framework: str, device: str | None, cases: Sequence[Case], quick: bool, path: Path, resume: bool = False
) -> bool:
    """Measures the cases that can run here, by default on the GPU if available. Writes to `path` after every case.

    Returns False if an implementation left the GPU unusable. A new process must then `resume` from the written results.
    """
    console = Console(highlight=False)
    journal = Journal(console, framework, quick, path)
    if resume:
        device = journal.resume()
    problem = fault(FRAMEWORKS[framework])
    if problem:
        journal.note(problem)
        journal.save()
        return True
    side = side_of(framework)
    build = FRAMEWORKS[framework].build() or {}
    journal.describe(version=side.version(), build=build)
    console.print(f"{side.TITLE} {side.version()}", style="bold")
    gpu_problem = _gpu_problem(framework, side, build)
    if gpu_problem and device != "cpu":
        journal.note(f"{gpu_problem}: nothing is measured there")
    device = device or ("cpu" if gpu_problem else "cuda")
    if device == "cuda" and gpu_problem:
        cases = ()
    elif device == "cuda":
        _describe_gpu(side, journal, quick)
    _keep_freed_memory()
    gc.freeze()  # excludes imported modules from collections, which would take a quarter of a second per row
    done = {row["key"] for row in journal.run["results"]}
    cases = [case for case in cases if framework in case.frameworks and case.device == device and case.key not in done]
    is_complete = _measure_all(console, side, cases, quick, journal)
    if is_complete:
        journal.end()
    return is_complete


def _gpu_problem(framework: str, side: Any, build: dict[str, Any]) -> str | None:
    """A sentence on the reason if nothing can be measured on a GPU."""
    if not side.has_gpu():
        return f"{side.TITLE} sees no GPU"
    if not build.get("cuda"):
        return f"fusedops.{framework} has no kernels for GPUs ({build.get('without_cuda')})"
    return None


def _describe_gpu(side: Any, journal: Journal, quick: bool) -> None:
    size = side.cache_size()
    if size:
        journal.describe(l2=size)
    for text in [] if quick else side.load_baselines():
        journal.note(text)


def _measure_all(console: Console, side: Any, cases: Sequence[Case], quick: bool, journal: Journal) -> bool:
    """Returns False if the GPU has become unusable."""
    efforts = [effort_of(case, quick) for case in cases]
    console.print(f"{len(cases)} rows; timing takes about {sum(x.total for x in efforts):.0f} s")
    both, costs = list(zip(cases, efforts, strict=True)), [effort.total + SETUP for effort in efforts]
    for place, (case, effort) in shown(console, side.TITLE, both, costs):
        begin = time.perf_counter()
        row = measured(side, case, effort, quick, journal.crashed)
        row["seconds"] = time.perf_counter() - begin
        journal.add(row, place)
        if not is_usable(side, case.device):
            console.print("The GPU is unusable for this process: another one measures the remaining rows")
            return False
    return True


def prepare(cases: Sequence[Case]) -> None:
    """Calls PyTorch's implementations once, which fills the compilers' disk caches before measuring starts."""
    side = side_of("torch")
    side.disable_autotune_cache()
    side.load_baselines()
    for case in cases:
        try:
            with side.on(case.device):
                for build in side.implementations(case, side.inputs(case)).values():
                    try_build(side, case.device, build)
        except Exception:  # measuring will raise and report it again
            continue


def _keep_freed_memory() -> None:
    """Makes glibc reuse large blocks: page faults of fresh ones, one per 4 KiB, would take four fifths of the time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(-4, 0)  # M_MMAP_MAX: allocate nothing by mmap
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: return nothing to the system
