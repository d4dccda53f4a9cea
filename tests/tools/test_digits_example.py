"""The example of the digits, run like a user runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.frameworks import installed
from tests.helpers.running import EXAMPLES, run, skip_without

TRAIN = EXAMPLES / "digits" / "train.py"
pytestmark = pytest.mark.slow  # it trains
NEEDED = ("torch", "tensorflow", "sklearn", "matplotlib", "rich")


@pytest.fixture(autouse=True)
def everything_is_here() -> None:
    skip_without(NEEDED)


def test_no_bit_differs_and_a_picture_is_saved(tmp_path: Path) -> None:
    picture = tmp_path / "a folder" / "digits.png"
    done = run(str(TRAIN), "--quick", "--picture", str(picture), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    frameworks = "PyTorch, TensorFlow and JAX" if installed("jax") else "PyTorch and TensorFlow"
    assert re.fullmatch(rf"differing bits between {frameworks}: 0 of [\d,]+", last)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not done.stderr
