"""Running an example as a user runs it, whatever is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

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


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=environment)


def skip_without(modules: tuple[str, ...]) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"the example needs {module}")
