"""PyTorch: attention over positions that are divided among processes: tests/programs/torch_context_parallel.py."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.helpers.running import check_ranks

CONVERTED = ("transformers",) if find_spec("transformers") else ()
TWO = ("options", "packed", "modes", "positions", "errors", "context", *CONVERTED)
FOUR = ("options", "packed", "positions", "errors")


@pytest.mark.slow
@pytest.mark.parametrize(("world", "sections"), [(2, TWO), (4, FOUR)], ids=["two", "four"])
def test_ranks(torch_backend, tmp_path, world, sections):
    """On the CPU with gloo, on GPUs with NCCL."""
    check_ranks("torch_context_parallel.py", torch_backend, world, sections, tmp_path)
