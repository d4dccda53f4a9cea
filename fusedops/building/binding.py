"""How the PyTorch binding is compiled and linked: torch_binding/ and the core's objects, by torch's own tools.

It is made on LibTorch's stable ABI and Python's limited API: one file for every torch from 2.10 and every Python from
3.10 on.
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
# By this name, which no file has, a library for autograd finds the operators that are loaded, wherever they lie.
LINK = [f"-Wl,--version-script={EXPORTS}", "-Wl,-soname,fusedops_torch_operators"]
CUDART_NEEDS = ["dl", "rt", "pthread"]  # libraries behind the static runtime


def variables(options: Options, folder: Path) -> dict[str, str]:
    """What torch's tools find ninja and the compiler by. A program stands for all that CXX says: some versions of torch
    take CXX for one word, and put a ccache before it, others end a word at every space. It is made in `folder`."""
    program = folder / "fusedops-c++"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(cached(options.cxx))} "$@"\n')
    program.chmod(0o755)
    path = f"{folder.resolve()}{os.pathsep}{path_with_ninja()}"
    return {"CXX": program.name, "PATH": path, "TORCH_NO_COMPILER_WRAPPER": "1"}


def flags(options: Options) -> list[str]:
    """All but those of `without_paths`, for which torch must be imported."""
    return ["-std=c++20", *options.host_flags, "-Wall", f"-DTORCH_TARGET_VERSION={STABLE_ABI}"]


def without_paths(torch_includes: Iterable[str]) -> list[str]:
    """Takes the folders of the machine that builds out of file names: torch shows these in some of its errors."""
    return [f"-fmacro-prefix-map={folder}/=" for folder in (Path.cwd(), *torch_includes)]
