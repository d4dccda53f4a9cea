"""The examples without one of the frameworks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.frameworks import installed
from tests.helpers.running import EXAMPLES, WITHOUT, run, skip_without

pytestmark = pytest.mark.slow  # they train
NEEDED = ("torch", "tensorflow", "sklearn", "matplotlib", "rich")
BOTH = pytest.mark.parametrize("example", ["digits", "transformer"])


@pytest.fixture(autouse=True)
def everything_is_here(example: str) -> None:
    skip_without(tuple(name for name in NEEDED if name != "sklearn" or example == "digits"))


@BOTH
def test_without_tensorflow_the_rest_is_shown(tmp_path: Path, example: str) -> None:
    train, picture = EXAMPLES / example / "train.py", tmp_path / f"{example}.png"
    done = run("-c", WITHOUT, "tensorflow", str(train), "--quick", "--picture", str(picture), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "missing: TensorFlow" in done.stdout
    assert example == "digits" or re.search("^written by PyTorch:$", done.stdout, re.MULTILINE)
    compared = {"digits": "between PyTorch and JAX: 0 of", "transformer": "from PyTorch and JAX: yes"}[example]
    assert (compared if installed("jax") else "not compared") in done.stdout.splitlines()[-1]
    assert picture.exists()


@BOTH
def test_without_pytorch_it_says_so(tmp_path: Path, example: str) -> None:
    done = run("-c", WITHOUT, "torch", str(EXAMPLES / example / "train.py"), "--quick", cwd=tmp_path)
    assert done.returncode == 1
    assert "missing: PyTorch" in done.stdout
    assert "trained in PyTorch" in done.stdout.splitlines()[-1]
