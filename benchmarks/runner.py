"""Measures one framework's cases, in a process of its own, and shows each as it comes."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

import fusedops
from benchmarks.case import Case
from benchmarks.check import Expected, check, expected
from benchmarks.report import line
from benchmarks.timing import Build, Contender, Effort, HostClock, take_turns
from fusedops.loading import FRAMEWORKS, fault

# Section -> how long to measure; long enough for a figure that repeats, short enough for all to take minutes.
EFFORTS = {
    "stream": Effort(round=8e-3, total=0.8, least_calls=5),
    "launch": Effort(round=2e-3, total=1.0, least_calls=5),
    "matmul": Effort(round=8e-3, total=0.8, least_calls=3),
    "rows": Effort(round=8e-3, total=0.6, least_calls=2),
    "dtypes": Effort(round=8e-3, total=0.4, least_calls=2),
    "small": Effort(round=2e-3, total=0.3, least_calls=2),
    "python": Effort(round=5e-3, total=0.4, least_calls=5),
    "call": Effort(round=2e-3, total=1.5),
    "call-gpu": Effort(round=2e-3, total=1.5),
    "cpu": Effort(round=0.0, total=3.0),
    "cpu-rows": Effort(round=20e-3, total=3.0),
    "keras": Effort(round=20e-3, total=2.0, least_calls=3),
    "transformers": Effort(round=100e-3, total=10.0, least_calls=3),
}


def measure(framework: str, devices: Sequence[str], cases: Sequence[Case], quick: bool, path: Path) -> None:
    """Runs what can be run here and writes it to `path`, again after every case."""
    console = Console(highlight=False)
    run: dict[str, Any] = {"framework": framework, "environment": environment(), "results": [], "notes": []}

    def note(text: str) -> None:
        run["notes"].append(text)
        console.print(text, markup=False)

    def save() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(run, indent=1))

    problem = fault(FRAMEWORKS[framework])
    if problem:
        note(problem)
        return save()
    side = importlib.import_module(f"benchmarks.{framework}_contenders")
    build = FRAMEWORKS[framework].build() or {}
    run["environment"].update(version=side.version(), build=build)
    console.print(f"{side.TITLE} {side.version()}", style="bold")
    if "cuda" in devices and not side.has_gpu():
        note(f"{side.TITLE} sees no GPU: nothing is measured there")
        devices = [device for device in devices if device != "cuda"]
    elif "cuda" in devices and not build.get("cuda"):
        note(f"fusedops.{framework} has no kernels for GPUs ({build.get('without_cuda')}): nothing is measured there")
        devices = [device for device in devices if device != "cuda"]

    for text in side.notes():
        note(text)
    _keep_freed_memory()
    cases = [case for case in cases if framework in case.frameworks and case.device in devices]
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(side.TITLE, total=len(cases))
        for case in cases:
            effort = EFFORTS[case.section]
            if quick:
                effort = replace(effort, total=0.15 * effort.total, least_rounds=3)
            result = _measured(side, case, effort)
            run["results"].append(result)
            save()
            console.print(line(run, result), markup=False, soft_wrap=True)
            progress.advance(task)
    save()


def prepare(cases: Sequence[Case]) -> None:
    """Calls PyTorch's contenders once, so that the compilers' caches on the disk are full when measuring starts."""
    side = importlib.import_module("benchmarks.torch_contenders")
    side.keep_no_tuning()
    for case in cases:
        try:
            with side.on(case.device):
                for build in side.contenders(case, side.inputs(case)).values():
                    _tried(build)
        except Exception:  # it will be met again, and shown, when it is measured
            continue


def _measured(side: Any, case: Case, effort: Effort) -> dict[str, Any]:
    result: dict[str, Any] = {"key": case.key, **asdict(case), "contenders": {}}
    right: dict[str, Contender] = {}
    try:
        with side.on(case.device):
            values = side.inputs(case)
            wanted = expected(side, case, values) if values else None
            for name, build in side.contenders(case, values).items():
                contender, outputs, problem = _tried(build)
                if contender and contender.checked and wanted and not problem:
                    problem = _problem(side, case, outputs, wanted)
                del outputs
                result["contenders"][name] = {"work": (contender and contender.work) or case.work, "problem": problem}
                if contender and not problem:
                    right[name] = contender
            for name, samples in take_turns(right, effort).items():
                result["contenders"][name]["samples"] = samples
                clock = right[name].clock
                if isinstance(clock, HostClock) and clock.synchronize:
                    result["contenders"][name]["host_share"] = clock.host_share
                peak = right[name].peak
                if peak:
                    result["contenders"][name]["peak"] = peak()
    except Exception as error:  # out of memory, say: the other cases can still be measured
        result["problem"] = _sentence(error)
    return result


def _tried(build: Build) -> tuple[Contender | None, Any, str | None]:
    """A contender, what its first call returned, and what went wrong: one that fails must not end the run."""
    try:
        contender = build()
        return contender, contender.call(), None
    except Exception as error:
        return None, None, _sentence(error)


def _problem(side: Any, case: Case, outputs: Any, wanted: Expected) -> str | None:
    """Why a contender's time does not count."""
    try:
        outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        return check(side, case, outputs, wanted)
    except Exception as error:
        return _sentence(error)


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]


def _keep_freed_memory() -> None:
    """Lets glibc reuse large blocks: fresh ones cost a page fault every 4 KiB, four fifths of the time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(-4, 0)  # M_MMAP_MAX: none from mmap
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: none back to the system


def environment() -> dict[str, Any]:
    """The machine and the versions, without importing a framework."""
    facts: dict[str, Any] = {
        "fusedops": fusedops.__version__,
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
    }
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            facts["gpu"], facts["driver"] = answer.stdout.splitlines()[0].split(", ")
    return facts


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    return next((row.split(":")[1].strip() for row in text.splitlines() if row.startswith("model name")), "")
