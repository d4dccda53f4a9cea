"""Measures one framework's cases, in a process of its own, and shows each as it comes."""

from __future__ import annotations

import ctypes
import gc
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.cases.case import Case
from benchmarks.contenders import side_of
from benchmarks.measuring.contest import is_usable, measured, tried
from benchmarks.measuring.environment import clocks, environment
from benchmarks.measuring.timing import Effort
from benchmarks.results.report import line
from benchmarks.results.schema import Row, Run
from fusedops.loading import FRAMEWORKS, fault

# Section -> how long to measure; long enough for a figure that repeats, short enough for all to take minutes.
EFFORTS = {
    "stream": Effort(round=4e-3, total=0.3, least_calls=3),
    "launch": Effort(round=2e-3, total=0.5, least_calls=5),
    "matmul": Effort(round=8e-3, total=0.3, least_calls=3),
    "rows": Effort(round=4e-3, total=0.4, least_calls=2),
    "dtypes": Effort(round=4e-3, total=0.3, least_calls=2),
    "small": Effort(round=1e-3, total=0.25, least_calls=2),
    "growth": Effort(round=1e-3, total=0.2),
    "growth-rows": Effort(round=1e-3, total=0.2),
    "growth-length": Effort(round=1e-3, total=0.2),
    "seeds": Effort(round=2e-3, total=0.5),
    "seeds-cpu": Effort(round=2e-3, total=0.5),
    "python": Effort(round=5e-3, total=0.3, least_calls=5),
    "call": Effort(round=2e-3, total=0.4),
    "call-gpu": Effort(round=2e-3, total=0.4),
    "cpu": Effort(round=0.0, total=1.2),
    "cpu-rows": Effort(round=10e-3, total=1.2),
    "keras": Effort(round=10e-3, total=1.0, least_calls=2),
    "transformers": Effort(round=50e-3, total=4.0, least_calls=2),
}
SETUP = 0.5  # seconds that a case takes beside its effort, about: inputs, the reference, first calls


def measure(
    framework: str, device: str | None, cases: Sequence[Case], quick: bool, path: Path, resume: bool = False
) -> bool:
    """Runs what can be run here and writes it to `path`, again after every case; by default on the GPU, if any.

    False: a contender has left the GPU unusable, and a new process has to `resume` what this one has written.
    """
    start = time.perf_counter()
    console = Console(highlight=False)
    run: Run = {"framework": framework, "quick": quick, "environment": environment(), "results": [], "notes": []}
    crashed: dict[str, str] = {}
    if resume:
        run = json.loads(path.read_text())
        start -= run["environment"]["seconds"]
        device = run["results"][-1]["device"]  # whatever has become of the GPU
        crashed = _crashed(run["results"][-1])
        if crashed:
            run["results"].pop()

    def note(text: str) -> None:
        if text not in run["notes"]:
            run["notes"].append(text)
        console.print(text, markup=False, soft_wrap=True)

    def save() -> None:
        run["environment"]["seconds"] = time.perf_counter() - start
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(run, indent=1))

    problem = fault(FRAMEWORKS[framework])
    if problem:
        note(problem)
        save()
        return True
    side = side_of(framework)
    build = FRAMEWORKS[framework].build() or {}
    run["environment"]["version"], run["environment"]["build"] = side.version(), build
    console.print(f"{side.TITLE} {side.version()}", style="bold")
    without = None
    if not side.has_gpu():
        without = f"{side.TITLE} sees no GPU"
    elif not build.get("cuda"):
        without = f"fusedops.{framework} has no kernels for GPUs ({build.get('without_cuda')})"
    if without and device != "cpu":
        note(f"{without}: nothing is measured there")
    device = device or ("cpu" if without else "cuda")
    if device == "cuda" and not without:
        size = side.cache_size()
        if size:
            run["environment"]["l2"] = size
        for text in [] if quick else side.load_peers():
            note(text)
    _keep_freed_memory()
    gc.freeze()  # or each row's collection would walk through all that was imported: a quarter of a second
    cases = [case for case in cases if framework in case.frameworks and case.device == device]
    if device == "cuda" and without:
        cases = []
    done = {row["key"] for row in run["results"]}
    cases = [case for case in cases if case.key not in done]
    efforts = [_effort(case, quick) for case in cases]
    costs = [effort.total + SETUP for effort in efforts]
    console.print(f"{len(cases)} rows, of which the clocks alone take about {sum(x.total for x in efforts):.0f} s")
    begun = time.perf_counter()
    with _progress(console) as progress:
        task = progress.add_task(side.TITLE, total=sum(costs), rows=f"0/{len(cases)}")
        for number, (case, effort, cost) in enumerate(zip(cases, efforts, costs, strict=True), 1):
            begin = time.perf_counter()
            result = measured(side, case, effort, quick, crashed)
            crashed = {}
            result["seconds"] = time.perf_counter() - begin
            run["results"].append(result)
            save()
            console.print(f"{number}/{len(cases)} {line(run, result)}", markup=False, soft_wrap=True)
            progress.update(task, advance=cost, rows=f"{number}/{len(cases)}", refresh=True)
            if not console.is_terminal and number % 10 == 0:
                console.print(f"about {_left(costs, number, time.perf_counter() - begun):.0f} s left")
            if not is_usable(side, case.device):
                console.print("The GPU is unusable for this process: what is left needs another")
                return False
    after = clocks()
    if after and "clocks" in run["environment"]:
        run["environment"]["clocks"]["after"] = after
    save()
    return True


def _effort(case: Case, quick: bool) -> Effort:
    effort = EFFORTS[case.section]
    return replace(effort, total=min(0.1, effort.total), least_rounds=3, least_calls=1) if quick else effort


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description} {task.fields[rows]}"), BarColumn(), TimeElapsedColumn())
    left = (TimeRemainingColumn(), TextColumn("left"))
    return Progress(
        *columns,
        *left,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        auto_refresh=False,  # a thread that draws would disturb what is measured
        speed_estimate_period=120,
    )


def _left(costs: Sequence[float], done: int, seconds: float) -> float:
    """As if the rest of the cases took as many times their costs as those that are done."""
    return seconds * sum(costs[done:]) / sum(costs[:done])


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


def _crashed(row: Row) -> dict[str, str]:
    found = row["contenders"]
    return {name: found[name]["problem"] or "" for name in found if found[name].get("crashed")}


def _keep_freed_memory() -> None:
    """Lets glibc reuse large blocks: fresh ones cost a page fault every 4 KiB, four fifths of the time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(-4, 0)  # M_MMAP_MAX: none from mmap
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: none back to the system
