"""The core: every file of core_cuda/ becomes one object, shared by all bindings."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusedops import sources as own
from fusedops.building.architectures import Architecture, choose
from fusedops.building.cuda import Cutlass, Toolkit, find_cutlass, find_toolkit
from fusedops.building.ninja import NinjaFile
from fusedops.building.options import BuildError, Options
from fusedops.loading import at_least

CORE = Path("core_cuda")
# Core sources that a library of user-defined operators links: core/declaration/library.h.
FOR_LIBRARIES = (Path("core/declaration/rule.cpp"), Path("core/declaration/view.cpp"))


def sources(*folders: Path) -> Path:
    """The folder that holds these source folders, in a checkout or an installed package.

    Raises:
        BuildError: They were not found.
    """
    try:
        return own.folder(*folders)
    except FileNotFoundError as error:
        raise BuildError(str(error).removeprefix("fusedops: ")) from None


@dataclass(frozen=True)
class Cuda:
    """The tools and architectures of a build with CUDA kernels."""

    toolkit: Toolkit
    architectures: Sequence[Architecture]
    cutlass: Cutlass
    left_out: str = ""  # see Choice

    @staticmethod
    def find(options: Options, gpus: Callable[[], Sequence[str]]) -> Cuda:
        """Raises NoCudaError if a tool is missing or no architecture remains: see `choose`."""
        toolkit = find_toolkit(options)
        choice = choose(options, toolkit, gpus)
        return Cuda(toolkit, choice.architectures, find_cutlass(), choice.left_out)

    @property
    def sm90(self) -> bool:
        """True if the *sm90*.cu files are compiled: they use instructions that only 9.0 has."""
        return any(a.number in ("90", "90a") for a in self.architectures)


def announcement(cuda: Cuda | None, reason: str | None) -> str:
    """A sentence on the build that begins. `reason`: the cause of a build without CUDA."""
    if not cuda:
        return f"fusedops: building for the CPU only, because {reason}"
    names = ", ".join(map(str, cuda.architectures))
    what = f"the CPU and, with CUDA {cuda.toolkit.version}, for GPUs of compute capability {names}"
    return f"fusedops: building for {what}" + (f"\nfusedops: {cuda.left_out}" if cuda.left_out else "")


def _cutlass_flags(ninja: NinjaFile, options: Options, cutlass: Cutlass) -> list[str]:
    # A link in the build folder: the headers' path changes with every isolated build of pip and may hold a space. The
    # version is part of the command, so ninja recompiles when the headers change.
    link = options.folder / "cutlass"
    built = ninja.root / link
    built.parent.mkdir(parents=True, exist_ok=True)
    built.unlink(missing_ok=True)
    built.symlink_to(cutlass.folder.resolve())
    return ["-isystem", str(link / "include"), f"-DFUSEDOPS_CUTLASS={cutlass.version}"]


def cpp(options: Options, with_kernels: bool) -> list[str]:
    """The compiler command of .cpp files. `with_kernels`: True if CUDA kernels are compiled as well."""
    flags = ["-std=c++20", *options.host_flags, "-Wall", "-Wextra", f"-I{CORE}"]
    return [*options.cxx, *flags, *(["-DFUSEDOPS_WITH_CUDA"] if with_kernels else [])]


def nvcc(options: Options, toolkit: Toolkit, includes: Sequence[str] = ()) -> list[str]:
    """The compiler command of .cu files, without architectures. `includes`: flags for headers besides the core's."""
    forwarded = ("-O0", "-g", "-O3", "-DNDEBUG")  # nvcc passes these to the host compiler itself
    compiler, flags = options.host_compiler
    return [
        str(toolkit.home / "bin/nvcc"),
        "-ccbin",
        compiler,
        "-std=c++20",
        "--expt-relaxed-constexpr",
        "--expt-extended-lambda",
        "-DFUSEDOPS_WITH_CUDA",
        f"-I{CORE}",
        *includes,
        "-Xcompiler",
        ",".join([*flags, *(flag for flag in options.host_flags if flag not in forwarded)]),
        # Compressed machine code takes a quarter of the space. Drivers older than 12.4 cannot read it, but CUDA 13
        # needs a newer one anyway.
        *(["--compress-mode=size"] if at_least(toolkit.version, "13.0") else []),
        *shlex.split(options.cuda_flags),
    ]


def for_gpus(options: Options, architectures: Sequence[Architecture]) -> list[str]:
    """nvcc's flags for these architectures and the build type."""
    optimization = ["-G", "-g", "-O0"] if options.debug else ["-O3", "-DNDEBUG"]
    return [*optimization, *(flag for architecture in architectures for flag in architecture.flags)]


def add_core(ninja: NinjaFile, options: Options, cuda: Cuda | None) -> list[Path]:
    """Adds the core's objects to `ninja`; without `cuda`, the CPU objects only."""
    compile_cpp = [*cpp(options, cuda is not None), "-c", "$in", "-o", "$out"]
    ninja.rule("core_cpp", compile_cpp, description="c++ $in", headers=True)

    def objects(rule: str, sources: Sequence[Path]) -> list[Path]:
        return [ninja.build(options.folder / f"{source}.o", rule, [source]) for source in sources]

    built = []
    if cuda:
        compile_cu = nvcc(options, cuda.toolkit, _cutlass_flags(ninja, options, cuda.cutlass))
        rest = ["-c", "$in", "-o", "$out"]
        general = [*for_gpus(options, cuda.architectures), *(["-DFUSEDOPS_SM90"] if cuda.sm90 else [])]
        ninja.rule("core_cu", [*compile_cu, *general, *rest], description="nvcc $in", headers=True)
        # Optimized in debug builds too: unoptimized, each of them takes ptxas more than 15 GB of memory.
        only_sm90 = ["-O3", "-DNDEBUG", *(["-lineinfo"] if options.debug else [])]
        only_sm90 += ["-gencode=arch=compute_90a,code=sm_90a"]
        ninja.rule("core_cu_sm90", [*compile_cu, *only_sm90, *rest], description="nvcc $in", headers=True)
        kernels = ninja.sources(CORE, "*.cu")
        # These take by far the longest, so they start first and the build does not end waiting for them alone.
        if cuda.sm90:
            built += objects("core_cu_sm90", [s for s in kernels if "sm90" in s.name])
        built += objects("core_cu", [s for s in kernels if "sm90" not in s.name])
    return objects("core_cpp", ninja.sources(CORE, "*.cpp")) + built
