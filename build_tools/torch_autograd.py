"""Autograd in C++ for PyTorch: see fusedops/building/autograd.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from fusedops.building.autograd import add_autograd, torch_version
from fusedops.building.ninja import NinjaFile
from fusedops.building.options import BuildError, Options
from fusedops.building.progress import Show
from fusedops.loading import abi


def build_autograd(ninja: NinjaFile, options: Options, operators: Path, show: Show) -> list[Path]:
    """The libraries for the installed torch and for those whose headers are given. One that does not compile is left
    out: a torch to come may lack something, and with it autograd is in Python."""
    folders = {abi(torch_version(folder)): folder for folder in (*options.torch_headers, _installed())}
    made = []
    for folder in folders.values():
        library = add_autograd(ninja, options, folder, operators)
        try:
            ninja.run(options.jobs, str(library), show=show)
            made.append(library)
        except BuildError as error:
            print(f"fusedops: {library.name} is left out: {error}", flush=True)
    return made


def _installed() -> Path:
    """The folder of the installed torch, which is not imported: that takes seconds."""
    return Path(importlib.util.find_spec("torch").submodule_search_locations[0])
