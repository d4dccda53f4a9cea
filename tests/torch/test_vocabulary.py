"""PyTorch: losses whose classes are divided over processes: tests/programs/torch_vocabulary.py."""

from __future__ import annotations

import pytest

from tests.helpers.running import check_ranks

TWO = (
    *("tensors", "dtensors", "infinities", "bits", "messages", "differentiated_twice", "compiled", "layers"),
    "errors",
)
FOUR = ("tensors", "dtensors", "bits", "two_dimensions", "errors")


@pytest.mark.slow
@pytest.mark.parametrize(("world", "sections"), [(2, TWO), (4, FOUR)], ids=["two", "four"])
def test_ranks(torch_backend, tmp_path, world, sections):
    """On the CPU with gloo, on GPUs with NCCL."""
    check_ranks("torch_vocabulary.py", torch_backend, world, sections, tmp_path)
