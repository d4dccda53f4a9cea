"""Build options, read from environment variables."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

COMPILER_CACHES = ("ccache", "sccache")
LAUNCHERS = (*COMPILER_CACHES, "distcc", "icecc")  # programs that may precede a compiler in CXX

TORCH_HEADERS = "FUSEDOPS_TORCH_HEADERS"


class BuildError(RuntimeError):
    """The build failed; the message says why and what to do."""


@dataclass(frozen=True)
class Options:
    debug: bool
    cuda: bool
    architectures: str  # FUSEDOPS_CUDA_ARCHS
    # TORCH_CUDA_ARCH_LIST, which applies to every extension of torch. "native", the local GPUs, is the default here.
    torch_architectures: str
    cpu_flags: str
    cuda_flags: str  # more flags for nvcc
    jobs: int
    torch_headers: tuple[Path, ...] = ()  # folders of further torch versions to build autograd in C++ for

    @classmethod
    def from_environment(cls, cpu_flags: str | None = None) -> Options:
        """`cpu_flags`: the default of FUSEDOPS_CPU_FLAGS; if None, flags for a library that is distributed."""
        environment = os.environ
        if cpu_flags is None:
            # The oldest x86-64 level on which the CPU kernels are fast: AVX2, FMA, F16C. The loader checks for it.
            cpu_flags = "-march=x86-64-v3" if platform.machine() in ("x86_64", "AMD64") else ""
        return cls(
            debug=_switch("DEBUG", "0"),
            cuda=_switch("CUDA", "1"),
            architectures=environment.get("FUSEDOPS_CUDA_ARCHS", "").strip(),
            torch_architectures=environment.get("TORCH_CUDA_ARCH_LIST", "").strip().removeprefix("native"),
            cpu_flags=environment.get("FUSEDOPS_CPU_FLAGS", cpu_flags),
            cuda_flags=environment.get("FUSEDOPS_CUDA_FLAGS", ""),
            jobs=_jobs(),
            torch_headers=tuple(map(Path, filter(None, environment.get(TORCH_HEADERS, "").split(os.pathsep)))),
        )

    @property
    def build_type(self) -> str:
        return "debug" if self.debug else "release"

    @property
    def folder(self) -> Path:
        """The build folder, a relative path, so that spaces in the checkout's path do not reach a compiler."""
        return Path("build") / self.build_type

    @property
    def cxx(self) -> list[str]:
        given = os.environ.get("CXX") or "g++"
        return [given] if Path(given).is_file() else shlex.split(given)  # a path may hold a space

    @property
    def host_compiler(self) -> tuple[str, list[str]]:
        """The compiler in `cxx` without launchers, and its flags: nvcc takes the host compiler as one word."""
        launched = next((i for i, word in enumerate(self.cxx) if Path(word).name not in LAUNCHERS), 0)
        return self.cxx[launched], self.cxx[launched + 1 :]

    @property
    def processor(self) -> str:
        """The processor's model and instructions if the flags depend on them, as -march=native does; else empty.
        Machines with different processors may share a cache of compiled code."""
        is_native = any(word.endswith("=native") for word in (*self.cxx, *shlex.split(self.cpu_flags)))
        return _processor() if is_native else ""

    @property
    def host_flags(self) -> list[str]:
        """The flags of all host code. They must be the same everywhere: an inline function of a core header may be
        compiled in the core, a .cu file and a binding, and the linker keeps one copy."""
        optimization = ["-O0", "-g", "-UNDEBUG"] if self.debug else ["-O3", "-DNDEBUG"]
        return [
            *optimization,
            *shlex.split(self.cpu_flags),
            "-ffp-contract=fast",
            "-fno-math-errno",
            "-fPIC",
            "-fvisibility=hidden",
            "-fvisibility-inlines-hidden",
        ]


def cached(command: list[str]) -> list[str]:
    """The compiler command, prefixed by ccache or sccache if installed, unless it already has a launcher."""
    if Path(command[0]).name in LAUNCHERS:
        return command
    found = next(filter(None, map(shutil.which, COMPILER_CACHES)), None)
    return [found, *command] if found else command


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = cpuinfo.read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return ""
    return "\n".join(line for line in lines if line.startswith(("model", "flags", "CPU", "Features")))


def _switch(name: str, default: str) -> bool:
    value = os.environ.get(name) or default
    if value not in ("0", "1"):
        raise BuildError(f"{name} must be 0 or 1; got {value}")
    return value == "1"


def _jobs() -> int:
    value = os.environ.get("MAX_JOBS") or str(len(os.sched_getaffinity(0)))
    if not value.isdigit() or int(value) == 0:
        raise BuildError(f"MAX_JOBS must be a number of compilers, from 1 on; got {value}")
    return int(value)
