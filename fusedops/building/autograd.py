"""Autograd in C++ for PyTorch: torch_autograd/ becomes one library per minor version of torch.

It uses torch's C++ API, which has no stable ABI, and no Python API. It needs torch's headers only, and links against
the library of the operators, which brings torch's libraries.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from fusedops.building.binding import without_paths
from fusedops.building.core import CORE
from fusedops.building.ninja import NinjaFile
from fusedops.building.options import BuildError, Options
from fusedops.building.progress import Show
from fusedops.loading import abi, autograd_file

AUTOGRAD = Path("torch_autograd")


def torch_version(torch: Path) -> str:
    """The version of torch in this folder, without importing it."""
    try:
        return re.search(r"^__version__ = ['\"](.+)['\"]", (torch / "version.py").read_text(), re.MULTILINE)[1]  # type: ignore[index]
    except (OSError, TypeError):
        raise BuildError(f"{torch / 'version.py'} does not have the version of torch") from None


def installed_torch() -> Path:
    """The folder of the installed torch, without importing it, which would take seconds."""
    return Path(importlib.util.find_spec("torch").submodule_search_locations[0])  # type: ignore[union-attr, index]


def build_autograd(
    ninja: NinjaFile,
    options: Options,
    torches: Iterable[Path],
    operators: Path,
    show: Show,
    say: Callable[[str], None],
) -> list[Path]:
    """The libraries for these folders of torch, one for each minor version.

    A library that does not compile is left out: a future torch may lack some API. With it, autograd runs in Python.
    """
    built = []
    for torch in {abi(torch_version(folder)): folder for folder in torches}.values():
        library = add_autograd(ninja, options, torch, operators)
        try:
            ninja.run(options.jobs, str(library), show=show)
            built.append(library)
        except BuildError as error:
            say(f"fusedops: {library.name} is left out: {error}")
    return built


def add_autograd(ninja: NinjaFile, options: Options, torch: Path, operators: Path) -> Path:
    """Adds the library to `ninja`. `torch`: a folder with version.py and include/; `operators`: the operators' library.

    The output lies in the folder of `operators`.
    """
    version = torch_version(torch)
    output = operators.parent / autograd_file(version)
    include = torch / "include"
    *others, last = ninja.sources(AUTOGRAD, "*.cpp")
    # A unity build: torch's headers take far longer to compile than the code that uses them.
    unity = [word for source in others for word in ("-include", str(source))]
    includes = [f"-I{CORE}", "-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include")]
    compile_cpp = [*options.cxx, "-std=c++20", *options.host_flags, "-Wall", "-Wextra", *includes, *unity]
    compile_cpp += without_paths([str(include)])
    # The version is part of the command, so ninja recompiles when the headers' version changes.
    compile_cpp += [f"-DFUSEDOPS_TORCH={version}", "-c", "$in", "-o", "$out"]
    name = output.name.replace(".", "_")
    ninja.rule(f"{name}_cpp", compile_cpp, description=f"c++ {AUTOGRAD} for torch {version}", headers=True)
    link = [*options.cxx, "-shared", "-o", "$out", "$in", f"-L{operators.parent}", f"-l:{operators.name}"]
    ninja.rule(f"{name}_link", link, description="link $out")
    compiled = ninja.build(options.folder / AUTOGRAD / f"{output.name}.o", f"{name}_cpp", [last], implicit=others)
    return ninja.build(output, f"{name}_link", [compiled], implicit=[operators])
