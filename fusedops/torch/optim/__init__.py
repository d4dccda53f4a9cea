"""Optimizers for PyTorch that update all parameters in one pass: `from fusedops.torch.optim import AdamW`.

Each is a subclass of the torch.optim class of the same name, with its arguments, parameter groups, hooks, closures and
state dicts. `AdamW` documents their common properties.
"""

from __future__ import annotations

from fusedops.torch.optim.adam import Adam, AdamW
from fusedops.torch.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW"]


def __dir__() -> list[str]:
    return sorted(__all__)
