"""Measures one framework's cases, in a process of its own."""

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
from benchmarks.contenders import side_of
from benchmarks.measuring.contest import is_usable, measured, tried
from benchmarks.measuring.journal import Journal
from benchmarks.measuring.progress import shown
from benchmarks.measuring.timing import Effort
from fusedops.loading import FRAMEWORKS, fault

SETUP = 0.5  # seconds that a case takes beside its effort, about: inputs, the reference, first calls


def effort_of(case: Case, quick: bool) -> Effort:
    """The effort for a case: rounds and time."""
    effort = SECTIONS[case.section].effort
    return replace(effort, total=min(0.1, effort.total), least_rounds=3, least_calls=1) if quick else effort


def measure(
    framework: str, device: str | None, cases: Sequence[Case], quick: bool, path: Path, resume: bool = False
) -> bool:
    """Runs what can be run here and writes it to `path`, again after every case; by default on the GPU, if any.

    False: a contender has left the GPU unusable, and a new process has to `resume` what this one has written.
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
    lacking = _lacking(framework, side, build)
    if lacking and device != "cpu":
        journal.note(f"{lacking}: nothing is measured there")
    device = device or ("cpu" if lacking else "cuda")
    if device == "cuda" and lacking:
        cases = ()
    elif device == "cuda":
        _describe_gpu(side, journal, quick)
    _keep_freed_memory()
    gc.freeze()  # or each row's collection would walk through all that was imported: a quarter of a second
    done = {row["key"] for row in journal.run["results"]}
    cases = [case for case in cases if framework in case.frameworks and case.device == device and case.key not in done]
    whole = _measure_all(console, side, cases, quick, journal)
    if whole:
        journal.end()
    return whole


def _lacking(framework: str, side: Any, build: dict[str, Any]) -> str | None:
    """Why nothing can be measured on a GPU, in a sentence."""
    if not side.has_gpu():
        return f"{side.TITLE} sees no GPU"
    if not build.get("cuda"):
        return f"fusedops.{framework} has no kernels for GPUs ({build.get('without_cuda')})"
    return None


def _describe_gpu(side: Any, journal: Journal, quick: bool) -> None:
    size = side.cache_size()
    if size:
        journal.describe(l2=size)
    for text in [] if quick else side.load_peers():
        journal.note(text)


def _measure_all(console: Console, side: Any, cases: Sequence[Case], quick: bool, journal: Journal) -> bool:
    """False where a GPU has become unusable."""
    efforts = [effort_of(case, quick) for case in cases]
    console.print(f"{len(cases)} rows, of which the clocks alone take about {sum(x.total for x in efforts):.0f} s")
    both, costs = list(zip(cases, efforts, strict=True)), [effort.total + SETUP for effort in efforts]
    for place, (case, effort) in shown(console, side.TITLE, both, costs):
        begin = time.perf_counter()
        row = measured(side, case, effort, quick, journal.crashed)
        row["seconds"] = time.perf_counter() - begin
        journal.add(row, place)
        if not is_usable(side, case.device):
            console.print("The GPU is unusable for this process: what is left needs another")
            return False
    return True


def prepare(cases: Sequence[Case]) -> None:
    """Calls PyTorch's contenders once, so that the compilers' caches on the disk are full when measuring starts."""
    side = side_of("torch")
    side.keep_no_tuning()
    side.load_peers()
    for case in cases:
        try:
            with side.on(case.device):
                for build in side.contenders(case, side.inputs(case)).values():
                    tried(side, case.device, build)
        except Exception:  # it will be met again, and shown, when it is measured
            continue


def _keep_freed_memory() -> None:
    """Lets glibc reuse large blocks: fresh ones cost a page fault every 4 KiB, four fifths of the time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(-4, 0)  # M_MMAP_MAX: none from mmap
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: none back to the system
