"""The example of the language model, run as a user runs it; and its parts."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TRAIN = ROOT / "examples" / "transformer" / "train.py"
NEEDED = ("torch", "tensorflow", "matplotlib", "rich")

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


@pytest.fixture(autouse=True)
def everything_is_here() -> None:
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"the example of the language model needs {module}")


def test_both_frameworks_write_the_same(tmp_path: Path) -> None:
    """From a copy of the examples and the package, in a folder whose name has spaces."""
    copy = tmp_path / "some where"
    for folder in ("fusedops", "examples"):
        shutil.copytree(ROOT / folder, copy / folder)
    done = run(str(copy / "examples" / "transformer" / "train.py"), "--quick", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last == "the same text from PyTorch and TensorFlow: yes; differing bits of logits: 0"
    assert done.stdout.count(": the same") == 2  # eager, and as a graph
    assert (copy / "build" / "transformer.png").read_bytes().startswith(b"\x89PNG")
    assert not done.stderr


def test_without_tensorflow_the_rest_is_shown(tmp_path: Path) -> None:
    picture = tmp_path / "transformer.png"
    done = run("-c", WITHOUT, "tensorflow", str(TRAIN), "--quick", "--picture", str(picture), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "missing: TensorFlow" in done.stdout
    assert re.search("^written by PyTorch:$", done.stdout, re.MULTILINE)
    assert "not compared" in done.stdout.splitlines()[-1]
    assert picture.exists()


def test_without_pytorch_it_says_so(tmp_path: Path) -> None:
    done = run("-c", WITHOUT, "torch", str(TRAIN), "--quick", cwd=tmp_path)
    assert done.returncode == 1
    assert "missing: PyTorch" in done.stdout
    assert "trained in PyTorch" in done.stdout.splitlines()[-1]
