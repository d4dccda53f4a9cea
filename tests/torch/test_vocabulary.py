"""PyTorch: losses whose classes are divided over processes: tests/programs/torch_vocabulary.py."""

from __future__ import annotations

import pytest

from tests.helpers.running import run_ranks

TWO = (
    *("tensors", "dtensors", "infinities", "bits", "messages", "differentiated_twice", "compiled", "layers"),
    "errors",
)
FOUR = ("tensors", "dtensors", "bits", "two_dimensions", "errors")


@pytest.mark.slow
@pytest.mark.parametrize(("world", "sections"), [(2, TWO), (4, FOUR)], ids=["two", "four"])
def test_ranks(torch_backend, tmp_path, world, sections):
    """On the CPU with gloo, on GPUs with NCCL."""
    if torch_backend.device == "cuda" and torch_backend.gpus() < world:
        pytest.skip("GPU: too few")
    program = ("torch_vocabulary.py", ",".join(sections))
    for log in run_ranks(*program, device=torch_backend.device, world=world, folder=tmp_path):
        assert [line for line in log.splitlines() if line in sections] == [*sections]
