"""Autograd in C++ for PyTorch: torch_autograd/ becomes a library for one minor version of torch, of its headers alone.

It is made on torch's C++ API, which has no stable ABI, and uses nothing of Python's. The library of the operators,
which it is linked against, brings torch's.
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
    """The version of torch in this folder, which is not imported."""
    try:
        return re.search(r"^__version__ = ['\"](.+)['\"]", (torch / "version.py").read_text(), re.MULTILINE)[1]  # type: ignore[index]
    except (OSError, TypeError):
        raise BuildError(f"{torch / 'version.py'} does not tell the version of torch") from None


def installed_torch() -> Path:
    """The folder of the installed torch, which is not imported: that takes seconds."""
    return Path(importlib.util.find_spec("torch").submodule_search_locations[0])  # type: ignore[union-attr, index]


def build_autograd(
    ninja: NinjaFile,
    options: Options,
    torches: Iterable[Path],
    operators: Path,
    show: Show,
    say: Callable[[str], None],
) -> list[Path]:
    """The libraries for these folders of torch, one for each minor version. A library that does not compile is left
    out: a torch to come may lack something, and with it autograd is in Python."""
    made = []
    for torch in {abi(torch_version(folder)): folder for folder in torches}.values():
        library = add_autograd(ninja, options, torch, operators)
        try:
            ninja.run(options.jobs, str(library), show=show)
            made.append(library)
        except BuildError as error:
            say(f"fusedops: {library.name} is left out: {error}")
    return made


def add_autograd(ninja: NinjaFile, options: Options, torch: Path, operators: Path) -> Path:
    """Adds the library to `ninja`, beside that of the operators. `torch`: a folder with version.py and include/."""
    version = torch_version(torch)
    output = operators.parent / autograd_file(version)
    include = torch / "include"
    *others, last = ninja.sources(AUTOGRAD, "*.cpp")
    # As one: torch's headers take a compiler far longer than the code that uses them.
    together = [word for source in others for word in ("-include", str(source))]
    includes = [f"-I{CORE}", "-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include")]
    compile_cpp = [*options.cxx, "-std=c++20", *options.host_flags, "-Wall", "-Wextra", *includes, *together]
    compile_cpp += without_paths([str(include)])
    # Ninja is told in a flag when the headers are those of another version.
    compile_cpp += [f"-DFUSEDOPS_TORCH={version}", "-c", "$in", "-o", "$out"]
    name = output.name.replace(".", "_")
    ninja.rule(f"{name}_cpp", compile_cpp, description=f"c++ {AUTOGRAD} for torch {version}", headers=True)
    link = [*options.cxx, "-shared", "-o", "$out", "$in", f"-L{operators.parent}", f"-l:{operators.name}"]
    ninja.rule(f"{name}_link", link, description="link $out")
    compiled = ninja.build(options.folder / AUTOGRAD / f"{output.name}.o", f"{name}_cpp", [last], implicit=others)
    return ninja.build(output, f"{name}_link", [compiled], implicit=[operators])
