"""Compiler and linker flags of the PyTorch binding: torch_binding/ and the core's objects, built by torch's tools.

The binding uses LibTorch's stable ABI and Python's limited API: one file serves every torch from 2.10 on and every
Python from 3.10 on.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from fusedops.building.ninja import path_with_ninja
from fusedops.building.options import Options, cached

BINDING = Path("torch_binding")
STABLE_ABI = "0x020a000000000000"  # torch 2.10
EXPORTS = BINDING / "exports.map"
# No file has this soname. Through it the autograd library binds to the loaded operators, wherever their file lies.
LINK = [f"-Wl,--version-script={EXPORTS}", "-Wl,-soname,fusedops_torch_operators"]
CUDART_NEEDS = ["dl", "rt", "pthread"]  # dependencies of the static CUDA runtime


def variables(options: Options, folder: Path) -> dict[str, str]:
    """The environment variables through which torch's tools find ninja and the compiler.

    CXX becomes the name of a script in `folder` that runs the whole command. Some versions of torch take CXX as one
    word and put ccache before it; others split it at every space.
    """
    program = folder / "fusedops-c++"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(cached(options.cxx))} "$@"\n')
    program.chmod(0o755)
    path = f"{folder.resolve()}{os.pathsep}{path_with_ninja()}"
    return {"CXX": program.name, "PATH": path, "TORCH_NO_COMPILER_WRAPPER": "1"}


def flags(options: Options) -> list[str]:
    """The compiler flags, except those of `without_paths`, which need torch to be imported."""
    return ["-std=c++20", *options.host_flags, "-Wall", f"-DTORCH_TARGET_VERSION={STABLE_ABI}"]


def without_paths(torch_includes: Iterable[str]) -> list[str]:
    """Flags that strip the build machine's folders from file names, which torch shows in some of its errors."""
    return [f"-fmacro-prefix-map={folder}/=" for folder in (Path.cwd(), *torch_includes)]
