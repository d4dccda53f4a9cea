"""Fixtures of the PyTorch suites."""

from __future__ import annotations

import pytest

from tests.helpers.frameworks import installed


@pytest.fixture(autouse=True)
def kernels_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels take tensors of any size, also in compiled code: the tests' tensors are small, and represent large
    ones."""
    if installed("torch"):
        from fusedops.torch.nn import layer, linear

        monkeypatch.setattr(layer, "_FEWEST_COMPILED", 0)
        monkeypatch.setattr(linear, "_FEWEST_COMPILED", 0)
