"""The machine's state: versions, processor, load, GPU and its clocks. No framework is imported."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import fusedops
from benchmarks.results.schema import Clocks, Environment

# Distribution -> name in the results: two builds of a package may have different distribution names.
PACKAGES = {
    "torch": "torch",
    "triton": "triton",
    "tensorflow": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "jax": "jax",
    "keras": "keras",
    "keras-hub": "keras-hub",
    "transformers": "transformers",
    "liger-kernel": "liger-kernel",
    "quack-kernels": "quack-kernels",
    "numpy": "numpy",
}


def environment() -> Environment:
    found: Environment = {
        "fusedops": fusedops.__version__,
        "python": platform.python_version(),
        "versions": _versions(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(x, 2) for x in os.getloadavg()],
    }
    names = _query("name", "driver_version")
    if names:
        found["gpu"], found["driver"] = names
    now = clocks()
    if now:
        found["clocks"] = {"before": now}
    return found


def clocks() -> Clocks | None:
    """The GPU's clocks. An idle GPU lowers them, so values before and after a run are no bounds, but reveal a limit."""
    answer = _query("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", units=False)
    if not answer or not all(x.isdigit() for x in answer):  # "[N/A]" on a MIG instance
        return None
    sm, memory, max_sm, max_memory = map(int, answer)
    return {"sm": sm, "memory": memory, "sm_most": max_sm, "memory_most": max_memory}


def _query(*fields: str, units: bool = True) -> list[str] | None:
    """nvidia-smi's values of these fields for the first GPU; None if unavailable."""
    if not shutil.which("nvidia-smi"):
        return None
    form = "csv,noheader" if units else "csv,noheader,nounits"
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", f"--format={form}"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = answer.stdout.splitlines()
    return lines[0].split(", ") if answer.returncode == 0 and lines else None


def _versions() -> dict[str, str]:
    found = {"fusedops": fusedops.__version__}
    for package, name in PACKAGES.items():
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    name = found.get("model name", "")
    if "cpu family" in found and "model" in found:  # hypervisors may use one name for several generations
        name += f" (family {found['cpu family']}, model {found['model']})"
    return name
