"""Custom operators for torch."""

from __future__ import annotations

from types import ModuleType

from fusedops.libraries import Gradients, Loader, Sources, public
from fusedops.torch import library
from fusedops.torch.operators import OPERATORS

_LOADER = Loader("fusedops.torch", library.LIBRARY, library.add, OPERATORS, public)


def load(name: str, sources: Sources, *, gradients: Gradients | None = None) -> ModuleType:
    return _LOADER.load(name, sources, gradients)


load.__doc__ = Loader.load.__doc__
