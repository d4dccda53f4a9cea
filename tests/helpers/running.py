"""Running an example, a piece of code or a program of the tests in a process of its own, whatever is installed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fusedops

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = ROOT / "tests" / "programs"

# Runs the example as if a module, the first argument, were not installed.
WITHOUT = """
import runpy, sys
from importlib.machinery import PathFinder

_, missing, train, *arguments = sys.argv
find_spec = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == missing else find_spec(name, *rest)
sys.argv = [train, *arguments]
sys.path.insert(0, train.rpartition("/")[0])
runpy.run_path(train, run_name="__main__")
"""


def environment(device: str, **variables: str) -> dict[str, str]:
    """Of a process that finds what is found here, and is to use this kind of device: one that sees a GPU has TensorFlow
    use it unasked."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | hidden | variables


def python_path(folder: Path) -> str:
    """For a process that is to find the package in `folder`, and whatever else is found here."""
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and Path(path) != ROOT]
    return os.pathsep.join([str(folder), *others])


def run_program(
    name: str, *arguments: str | Path, device: str = "cpu", cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs one of tests/programs/ in a process of its own."""
    command = [sys.executable, PROGRAMS / name, *arguments]
    variables = environment(device, **variables)
    return subprocess.run(command, env=variables, cwd=cwd, capture_output=True, text=True, timeout=600)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "COLUMNS": "100"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=variables)


def python(code: str, *, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the code with the package in `folder`."""
    variables = os.environ | {"PYTHONPATH": python_path(folder), "TF_CPP_MIN_LOG_LEVEL": "3"} | variables
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=600)


def copy_without_libraries(folder: Path) -> Path:
    """The folder, in `folder`, of a copy of the package in which nothing is built, and without a wheel's sources."""
    copy = folder / "with a space"
    package = Path(fusedops.__file__).parent
    left_out = shutil.ignore_patterns("*.so", "_build.json", "__pycache__", "_sources")
    shutil.copytree(package, copy / "fusedops", ignore=left_out)
    return copy


def compiled(source: Path, output: Path, *flags: str) -> Path:
    """The program or library that g++ makes of a source, or a skip."""
    compiler = shutil.which("g++")
    if not compiler:
        pytest.skip("g++ is not installed")
    subprocess.run([compiler, *flags, "-o", output, source], check=True)
    return output


def skip_without(modules: tuple[str, ...]) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"the example needs {module}")


def run_elsewhere(backend: Any, program: str, *arguments: Any, cwd: Path) -> subprocess.CompletedProcess[str]:
    """In a process that does not find the package."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    elsewhere = [folder for folder in folders if folder and not Path(folder, "fusedops").exists()]
    variables = {"PYTHONPATH": os.pathsep.join(elsewhere)}
    return run_program(program, *arguments, device=backend.device, cwd=cwd, **variables)


def blocks(kind: str, markdown: str) -> list[str]:
    """The code of a page, of one language."""
    return re.findall(rf"^```{kind}\n(.*?)\n```$", markdown, re.M | re.S)
