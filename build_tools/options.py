"""What the environment asks of the build."""

from __future__ import annotations

import os
import platform
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    debug: bool
    cuda: bool
    architectures: str  # as asked for; empty: the GPU here
    cpu_flags: str
    jobs: int

    @classmethod
    def from_environment(cls) -> Options:
        environment = os.environ
        # The oldest x86-64 on which the CPU kernels are fast: AVX2, FMA, F16C. The loader checks that it is there.
        cpu_flags = "-march=x86-64-v3" if platform.machine() in ("x86_64", "AMD64") else ""
        return cls(
            debug=environment.get("DEBUG") == "1",
            cuda=environment.get("CUDA") != "0",
            architectures=environment.get("FUSEDOPS_CUDA_ARCHS") or environment.get("TORCH_CUDA_ARCH_LIST") or "",
            cpu_flags=environment.get("FUSEDOPS_CPU_FLAGS", cpu_flags),
            jobs=int(environment.get("MAX_JOBS") or len(os.sched_getaffinity(0))),
        )

    @property
    def build_type(self) -> str:
        return "debug" if self.debug else "release"

    @property
    def folder(self) -> Path:
        """Where everything is made: relative, so that no space in the checkout's own path reaches a compiler."""
        return Path("build") / self.build_type

    @property
    def cxx(self) -> list[str]:
        return shlex.split(os.environ.get("CXX") or "g++")

    @property
    def host_flags(self) -> list[str]:
        """The flags of everything that runs on the CPU. An inline function of a core header may be compiled in the
        core, in a .cu and in a binding; the linker keeps one of them: all must have the same code."""
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
