"""The PyTorch binding as a setuptools extension: see binding.py.

Ninja runs this module, and only if an input has changed, because importing torch takes seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fusedops.building.binding import BINDING, CUDART_NEEDS, EXPORTS, LINK, flags, variables, without_paths
from fusedops.building.core import CORE
from fusedops.building.cuda import Toolkit
from fusedops.building.environment import show_site_packages
from fusedops.building.ninja import NinjaFile
from fusedops.building.options import Options


def add_torch(
    ninja: NinjaFile, options: Options, version: str, objects: Sequence[Path], toolkit: Toolkit | None
) -> list[Path]:
    """Adds the extension to `ninja`. `version`, the installed torch's, is part of the command: a new one rebuilds."""
    output = options.folder / "lib/fusedops/torch/_C.abi3.so"
    cuda: list[Path | str] = ["--cuda", toolkit.home, "--cudart", toolkit.cudart] if toolkit else []
    program: list[Path | str] = [
        sys.executable,
        "-m",
        "fusedops.building.torch_extension",
        options.folder,
        "--torch",
        version,
    ]
    command = [*program, *cuda, "--objects", "$in", "--flags", *flags(options)]
    ninja.rule("torch", command, description=f"torch extension for {version}")
    sources = [*BINDING.glob("*.cpp"), *BINDING.rglob("*.h"), EXPORTS, *CORE.rglob("*.h")]
    return [ninja.build(output, "torch", objects, implicit=sorted(sources))]


@contextmanager
def _quiet(log: Path) -> Iterator[None]:
    """Redirects output to `log`, since torch prints every command, and shows the log if an error occurs."""
    screen = os.dup(1), os.dup(2)
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    except BaseException as error:
        os.write(screen[0], log.read_bytes())
        raise SystemExit(1) from error
    finally:
        os.dup2(screen[0], 1)
        os.dup2(screen[1], 2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torch", required=True)
    parser.add_argument("--cuda", type=Path)
    parser.add_argument("--cudart", type=Path)
    parser.add_argument("--objects", nargs="+", required=True)
    parser.add_argument("--flags", nargs=argparse.REMAINDER, required=True)
    arguments = parser.parse_args()

    show_site_packages()
    os.environ.update(variables(Options.from_environment(), arguments.folder))
    import setuptools
    import torch
    from torch.utils import cpp_extension

    make_extension = cpp_extension.CppExtension
    if arguments.cuda:
        cpp_extension.CUDA_HOME = str(arguments.cuda)
        if torch.version.cuda:
            make_extension = cpp_extension.CUDAExtension
    extension = make_extension(
        "fusedops.torch._C",
        sorted(map(str, BINDING.glob("*.cpp"))),
        include_dirs=[str(CORE.resolve())],
        extra_objects=arguments.objects + ([str(arguments.cudart)] if arguments.cudart else []),
        extra_compile_args=[*arguments.flags, *without_paths(cpp_extension.include_paths())],
        extra_link_args=LINK,
        py_limited_api=True,
    )
    # CUDAExtension adds torch's CUDA libraries and the dynamic runtime. The binding needs neither. Without them it also
    # loads in a CPU build of torch.
    extension.libraries = ["c10", "torch", "torch_cpu", *(CUDART_NEEDS if arguments.cudart else [])]

    distribution = setuptools.Distribution({"name": "fusedops", "ext_modules": [extension]})
    command = cpp_extension.BuildExtension(distribution)
    command.build_lib = str(arguments.folder / "lib")
    command.build_temp = str(arguments.folder / "torch")
    command.ensure_finalized()
    with _quiet(arguments.folder / "torch.log"):
        command.run()


if __name__ == "__main__":
    main()
