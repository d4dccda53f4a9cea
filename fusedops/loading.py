"""Finds a binding's compiled library, and reports problems in one sentence before anything is loaded."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from fusedops.version import VERSION

PACKAGE = Path(__file__).parent

FACTS = {
    "fusedops": str,
    "framework": str,
    "bytes": dict,
    "cuda": str | None,
    "without_cuda": str | None,
    "architectures": list,
    "cpu_flags": str,
    "build_type": str,
}

_folders: dict[str, Path] = {}  # by framework: folders of libraries outside the package


@dataclass(frozen=True)
class Framework:
    name: str  # fusedops.<name>, make build-<name>
    title: str
    module: str
    distributions: tuple[str, ...]  # the packages that may contain the module
    files: tuple[str, ...]  # its libraries: the operators, then optional ones
    oldest: str  # the first supported version
    serves: Callable[[str, str], bool]  # serves(built, installed): True if a build for one version runs with another
    load: str | None = None  # the code that builds it at run time

    @property
    def folder(self) -> Path:
        return _folders.get(self.name) or PACKAGE / self.name

    def build(self, folder: Path | None = None) -> dict[str, Any] | None:
        """The facts of the build (fusedops/building/facts.py); None if they are unknown."""
        try:
            facts = json.loads(((folder or self.folder) / "_build.json").read_text())
        except (OSError, ValueError):
            return None
        if not isinstance(facts, dict) or not re.match(r"\d+\.\d", str(facts.get("framework"))):
            return None
        known = all(name in facts and isinstance(facts[name], type) for name, type in FACTS.items())
        return facts if known else None

    def installed(self) -> str | None:
        """The framework's version, read without importing it where package metadata has it."""
        for distribution in self.distributions:
            try:
                return metadata.version(distribution)
            except metadata.PackageNotFoundError:
                pass
        if importlib.util.find_spec(self.module) is None:
            return None
        return str(getattr(importlib.import_module(self.module), "__version__", "")) or None


def release(version: str) -> tuple[int, int]:
    """(2, 13) of "2.13.0+cpu"."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def at_least(version: str, oldest: str) -> bool:
    return release(version) >= release(oldest)


def abi(version: str) -> str:
    """The versions that a binary for this version serves, without a stable ABI: "2.13" for "2.13.0+cpu", which is any
    2.13, but only itself for a nightly build."""
    return version if "dev" in version else "{}.{}".format(*release(version))


FRAMEWORKS = {
    "torch": Framework(
        "torch",
        "PyTorch",
        "torch",
        ("torch",),
        ("_C.abi3.so",),
        "2.10",
        serves=lambda built, installed: True,  # LibTorch's stable ABI
        load="import fusedops; fusedops.torch.jit.load()",
    ),
    "tf": Framework(
        "tf",
        "TensorFlow",
        "tensorflow",
        ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu"),
        ("_ops.so", "_xla.so"),
        "2.20",
        serves=lambda built, installed: abi(built) == abi(installed),
    ),
    "jax": Framework(
        "jax",
        "JAX",
        "jax",
        ("jax",),
        ("_ffi.so",),
        "0.10",
        serves=lambda built, installed: at_least(installed, built),  # XLA takes handlers with older headers
    ),
}


def use(framework: str, folder: Path) -> None:
    """Makes this process take the libraries of `fusedops.<framework>` from `folder`."""
    _folders[framework] = folder


def library(framework: str) -> Path:
    """The library of `fusedops.<framework>`. An ImportError says what is wrong and what to run."""
    sentence = fault(FRAMEWORKS[framework])
    if sentence:
        raise ImportError(sentence, name=f"fusedops.{framework}")
    return FRAMEWORKS[framework].folder / FRAMEWORKS[framework].files[0]


def fault(framework: Framework, file: str | None = None, folder: Path | None = None) -> str | None:
    """Why a library of the binding cannot be loaded and what to run, one sentence each; None if it can be loaded.

    By default the library of the operators, in the framework's folder.
    """
    folder = folder or framework.folder
    library = folder / (file or framework.files[0])
    make = f"make build-{framework.name}" + (f", or in Python: {framework.load}" if framework.load else "")
    title, installed, build = framework.title, framework.installed(), framework.build(folder)
    what = f"fusedops.{framework.name}'s {file}" if file else f"fusedops.{framework.name}"
    here = f"{title} {installed} is installed"
    against = f"built against {title} {build['framework']}" if build else "not built"
    missing = _missing_instructions(build["cpu_flags"]) if build else ""

    if installed is None:
        problem = f"needs {title}, which is not installed; it is {against}"
        run = f"pip install {framework.module}, then {make}"
    elif not at_least(installed, framework.oldest):
        problem = f"needs {title} {framework.oldest} or newer, and {here}; it is {against}"
        run = f"pip install --upgrade {framework.module}, then {make}"
    elif build is None or not library.exists():
        facts = folder / "_build.json"
        gone = str(library) if build else f"readable {facts}"
        if library.exists() and not facts.exists():
            gone += ", which a build writes last: one is under way, or was broken off"
        problem, run = f"is not built: there is no {gone}; {here}", make
    elif library.stat().st_size != build["bytes"].get(library.name):
        expected, size = build["bytes"].get(library.name), library.stat().st_size
        problem, run = f"is damaged: {library} must have {expected} bytes; it has {size}", make
    elif build["fusedops"] != VERSION:
        problem, run = f"was built from fusedops {build['fusedops']}; this is {VERSION}; {here}", make
    elif not framework.serves(build["framework"], installed):
        problem, run = f"was {against}, and {here}", make
    elif missing:
        problem, run = (
            f"was built for CPUs with {missing}; this one has not",
            f"FUSEDOPS_CPU_FLAGS=-march=native {make}",
        )
    else:
        return None
    copies = ", ".join(map(str, other_copies()))
    note = f" This is the fusedops in {PACKAGE}; another one is in {copies}." if copies else ""
    return f"{what} {problem}.{note} Run: {run}"


def other_copies() -> list[Path]:
    """Other installations of the package that Python could find from here.

    A checkout in the current folder hides an installed package, and a script's own folder is searched instead of the
    current one.
    """
    # Editable installs have finders of their own. Before Python 3.12 some finders have no find_spec.
    finders = [x for x in sys.meta_path if x is not PathFinder and hasattr(x, "find_spec")]
    specs = [finder.find_spec("fusedops", None) for finder in finders]
    specs += [PathFinder.find_spec("fusedops", [place]) for place in (*sys.path, "")]
    found = [Path(spec.origin).resolve().parent for spec in specs if spec and spec.origin]
    return [folder for folder in dict.fromkeys(found) if folder != PACKAGE.resolve()]


def autograd_file(version: str) -> str:
    """The C++ autograd library for this version of torch."""
    return f"_autograd.torch{abi(version)}.so"


def autograd_fault(version: str) -> str | None:
    """Why autograd runs in Python, as for every torch without a C++ autograd library; None if it runs in C++."""
    if os.environ.get("FUSEDOPS_TORCH_AUTOGRAD") == "python":
        return "FUSEDOPS_TORCH_AUTOGRAD=python asks for it"
    return fault(FRAMEWORKS["torch"], autograd_file(version))


def _missing_instructions(cpu_flags: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    if "-march=x86-64-v3" not in cpu_flags.split():
        return ""
    try:
        here = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        here = None
    if not here:
        return ""
    return ", ".join(name for name in ("avx2", "bmi2", "f16c", "fma") if name not in here[1].split())
