"""The CUDA toolkit, the local GPUs and the CUTLASS headers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from fusedops.building.options import Options

OLDEST = (12, 4)  # the first toolkit whose nvcc supports __maxnreg__
CUTLASS = "nvidia-cutlass==4.2.0.0"


class NoCudaError(Exception):
    """CUDA kernels cannot be built; the message says why."""


class NoCutlassError(NoCudaError):
    """A toolkit was found; only the headers of CUTLASS are missing."""


@dataclass(frozen=True)
class Toolkit:
    home: Path
    version: str
    cudart: Path  # the static runtime: the binding then loads beside any CUDA, or none
    known: frozenset[str] = frozenset()  # architectures that nvcc compiles for, such as "90"; empty if nvcc lists none


def find_toolkit(options: Options) -> Toolkit:
    if not options.cuda:
        raise NoCudaError("CUDA=0 was given")
    nvcc = shutil.which("nvcc")
    places = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    if nvcc:
        places.insert(2, str(Path(nvcc).resolve().parent.parent))
    # An nvcc on the PATH may be a wrapper script; only a real toolkit also has the headers.
    homes = [
        Path(p) for p in places if p and Path(p, "bin/nvcc").exists() and Path(p, "include/cuda_runtime.h").exists()
    ]
    if not homes:
        raise NoCudaError("nvcc was not found")
    home = homes[0]
    release = re.search(r"release (\d+)\.(\d+)", _nvcc(home, "--version"))
    if not release or (int(release[1]), int(release[2])) < OLDEST:
        raise NoCudaError(f"the CUDA toolkit in {home} is older than {OLDEST[0]}.{OLDEST[1]}")
    for folder in ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"):
        cudart = home / folder / "libcudart_static.a"
        if cudart.exists():
            known = frozenset(re.findall(r"compute_(\d+)", _nvcc(home, "--list-gpu-arch")))
            return Toolkit(home, f"{release[1]}.{release[2]}", cudart, known)
    raise NoCudaError(f"the CUDA toolkit in {home} has no libcudart_static.a")


def _nvcc(home: Path, option: str) -> str:
    try:
        return subprocess.run([home / "bin/nvcc", option], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        raise NoCudaError(f"{home / 'bin/nvcc'} does not run") from None


def gpus_here() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return sorted({line.strip() for line in answer.splitlines() if re.fullmatch(r"\d+\.\d", line.strip())})


@dataclass(frozen=True)
class Cutlass:
    folder: Path
    version: str


def find_cutlass() -> Cutlass:
    """The headers in the wheel `nvidia-cutlass`; its Python code is not used."""
    spec = importlib.util.find_spec("cutlass_library")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "source"
        if (folder / "include/cutlass/cutlass.h").exists():
            return Cutlass(folder, metadata.version("nvidia-cutlass"))
    raise NoCutlassError(f"the headers of CUTLASS were not found (pip install --no-deps {CUTLASS})")
