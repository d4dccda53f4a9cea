"""PyTorch: attention over positions that are divided among processes: tests/programs/torch_context_parallel.py."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.helpers.running import run_ranks

SECTIONS = ("options", "packed", "modes", "positions", "errors", "context")
CONVERTED = ("transformers",) if find_spec("transformers") else ()


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4], ids=["two", "four"])
def test_ranks(torch_backend, tmp_path, world):
    """On the CPU with gloo, on GPUs with NCCL."""
    if torch_backend.device == "cuda" and torch_backend.gpus() < world:
        pytest.skip("GPU: too few")
    sections = (*SECTIONS, *CONVERTED)
    program = ("torch_context_parallel.py", ",".join(sections))
    for log in run_ranks(*program, device=torch_backend.device, world=world, folder=tmp_path):
        assert [line for line in log.splitlines() if line in sections] == [*sections]
