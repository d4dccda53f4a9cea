"""_build.json, the build record beside the libraries of a binding. fusedops.loading reads it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from fusedops.building.core import Cuda
from fusedops.building.options import Options
from fusedops.version import VERSION


def remove_facts(folder: Path) -> None:
    """Called before a library is replaced: a library without `_build.json` is not loaded."""
    (folder / "_build.json").unlink(missing_ok=True)


def write_facts(
    folder: Path, libraries: Iterable[Path], *, version: str, options: Options, cuda: Cuda | None, reason: str | None
) -> None:
    """`version`: the framework's. `reason`: the cause of a build without CUDA."""
    facts = {
        "fusedops": VERSION,
        "framework": version,
        "cuda": cuda.toolkit.version if cuda else None,
        "without_cuda": reason,
        "architectures": [str(a) for a in cuda.architectures] if cuda else [],
        "cpu_flags": options.cpu_flags,
        "build_type": options.build_type,
        "bytes": {library.name: library.stat().st_size for library in libraries},
    }
    # Atomic, and last: the file's presence marks a complete build.
    new = folder / "_build.new"
    new.write_text(json.dumps(facts, indent=2) + "\n")
    os.replace(new, folder / "_build.json")
