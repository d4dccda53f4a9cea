"""The example of the language model, run like a user runs it; and its parts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.frameworks import installed
from tests.helpers.running import EXAMPLES, run, skip_without

TRAIN = EXAMPLES / "transformer" / "train.py"
pytestmark = pytest.mark.slow  # it trains
NEEDED = ("torch", "tensorflow", "matplotlib", "rich")


@pytest.fixture(autouse=True)
def everything_is_here() -> None:
    skip_without(NEEDED)


def test_all_frameworks_generate_the_same_text(tmp_path: Path) -> None:
    """From a copy of the examples and the package, in a folder whose name has spaces."""
    copy = tmp_path / "some where"
    for folder in ("fusedops", "examples"):
        shutil.copytree(EXAMPLES.parent / folder, copy / folder)
    done = run(str(copy / "examples" / "transformer" / "train.py"), "--quick", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    titles = "PyTorch, TensorFlow and JAX" if installed("jax") else "PyTorch and TensorFlow"
    assert last == f"the same text from {titles}: yes; differing bits of logits: 0"
    assert done.stdout.count(": the same") == 2 + installed("jax")  # TensorFlow's eager code and graph, JAX
    assert (copy / "build" / "transformer.png").read_bytes().startswith(b"\x89PNG")
    assert not done.stderr
