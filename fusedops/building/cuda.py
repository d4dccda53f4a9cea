"""The CUDA toolkit, the CUTLASS headers and the GPU architectures to compile for."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from fusedops.building.options import BuildError, Options

OLDEST = (12, 4)  # the first whose nvcc knows __maxnreg__
CUTLASS = "nvidia-cutlass==4.2.0.0"
WITHOUT_A_GPU = "9.0+PTX"
# Names that TORCH_CUDA_ARCH_LIST may hold.
NAMED = {
    "Ampere": "8.0 8.6+PTX",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
    "Blackwell": "10.0 12.0+PTX",
}


class NoCudaError(Exception):
    """Why the kernels for the GPU are left out."""


class NoCutlassError(NoCudaError):
    """There is a toolkit, and only the headers of CUTLASS are missing."""


@dataclass(frozen=True)
class Toolkit:
    home: Path
    version: str
    cudart: Path  # the static one: the binding then loads beside any CUDA, or none


def find_toolkit(options: Options) -> Toolkit:
    if not options.cuda:
        raise NoCudaError("CUDA=0 was given")
    nvcc = shutil.which("nvcc")
    places = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    if nvcc:
        places.insert(2, str(Path(nvcc).resolve().parent.parent))
    # An nvcc on the PATH may be a mere wrapper; a toolkit has the headers beside it.
    homes = [
        Path(p) for p in places if p and Path(p, "bin/nvcc").exists() and Path(p, "include/cuda_runtime.h").exists()
    ]
    if not homes:
        raise NoCudaError("nvcc was not found")
    home = homes[0]
    answer = subprocess.run([home / "bin/nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release (\d+)\.(\d+)", answer)
    if not release or (int(release[1]), int(release[2])) < OLDEST:
        raise NoCudaError(f"the CUDA toolkit in {home} is older than {OLDEST[0]}.{OLDEST[1]}")
    for folder in ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"):
        cudart = home / folder / "libcudart_static.a"
        if cudart.exists():
            return Toolkit(home, f"{release[1]}.{release[2]}", cudart)
    raise NoCudaError(f"the CUDA toolkit in {home} has no libcudart_static.a")


def gpus_here() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return sorted({line.strip() for line in answer.splitlines() if re.fullmatch(r"\d+\.\d", line.strip())})


@dataclass(frozen=True)
class Architecture:
    number: str  # "90", "90a"
    ptx: bool  # also as PTX, which later GPUs compile for themselves

    def __str__(self) -> str:
        major, minor, variant = re.fullmatch(r"(\d+)(\d)([af]?)", self.number).groups()  # type: ignore[union-attr]
        return f"{major}.{minor}{variant}" + "+PTX" * self.ptx

    @property
    def flags(self) -> list[str]:
        codes = [f"sm_{self.number}"] + [f"compute_{self.number}"] * self.ptx
        return [f"-gencode=arch=compute_{self.number},code={code}" for code in codes]


def architectures(options: Options) -> list[Architecture]:
    """Those asked for ("8.0;9.0+PTX", "90"), else the GPUs here, else 9.0 with PTX."""
    text = options.architectures or " ".join(gpus_here()) or WITHOUT_A_GPU
    for name, meaning in NAMED.items():
        text = re.sub(rf"\b{name}(\+PTX)?", meaning, text)
    found = []
    for item in re.split(r"[;,\s]+", text.strip(";, ")):
        parts = re.fullmatch(r"(?:sm_)?(\d+)\.?(\d)([af]?)(\+PTX)?", item)
        if not parts:
            raise BuildError(f"FUSEDOPS_CUDA_ARCHS must list compute capabilities such as '8.0;9.0+PTX'; got {item!r}")
        if int(parts[1]) < 8:
            raise BuildError(f"FUSEDOPS_CUDA_ARCHS must list compute capabilities from 8.0 on; got {item!r}")
        found.append(Architecture(parts[1] + parts[2] + parts[3], bool(parts[4])))
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Cutlass:
    folder: Path
    version: str


def find_cutlass() -> Cutlass:
    """The headers in the wheel `nvidia-cutlass`, whose Python code is not used."""
    spec = importlib.util.find_spec("cutlass_library")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(place) / "source"
        if (folder / "include/cutlass/cutlass.h").exists():
            return Cutlass(folder, metadata.version("nvidia-cutlass"))
    raise NoCutlassError(f"the headers of CUTLASS were not found (pip install --no-deps {CUTLASS})")
