"""What the suites of PyTorch share."""

from __future__ import annotations

import pytest

from tests.helpers.frameworks import installed


@pytest.fixture(autouse=True)
def kernels_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """In compiled code, too: the tensors of tests are small, and stand for large ones."""
    if installed("torch"):
        from fusedops.torch.nn import layer, linear

        monkeypatch.setattr(layer, "_FEWEST_COMPILED", 0)
        monkeypatch.setattr(linear, "_FEWEST_COMPILED", 0)
