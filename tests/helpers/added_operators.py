"""A library of operators added while a process runs: tests/programs/added_operators.cpp, compiled like a user's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fusedops.building.core import CORE, FOR_LIBRARIES
from fusedops.building.options import Options
from tests.helpers.running import PROGRAMS, ROOT
from tests.helpers.workers import once


def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled once for all processes of pytest."""
    options = Options.from_environment()
    if shutil.which(options.cxx[0]) is None:
        pytest.skip(f"there is no {options.cxx[0]}")

    def make(folder: Path) -> str:
        output = folder / "added_operators.so"
        sources = [PROGRAMS / "added_operators.cpp", *(ROOT / CORE / source for source in FOR_LIBRARIES)]
        command = [*options.cxx, "-std=c++20", *options.host_flags, "-O1", f"-I{ROOT / CORE}", "-shared", "-Wl,-z,defs"]
        subprocess.run([*command, *sources, "-o", output], check=True)
        return str(output)

    return Path(once(tmp_path_factory, "added_operators", make))
