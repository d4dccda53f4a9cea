"""User-defined operators for JAX."""

from __future__ import annotations

from types import ModuleType

from fusedops.jax import library
from fusedops.jax.operators import OPERATORS
from fusedops.libraries import Gradients, Loader, Sources, public

_LOADER = Loader("fusedops.jax", library.LIBRARY, library.add, OPERATORS, public)


def load(name: str, sources: Sources, *, gradients: Gradients | None = None) -> ModuleType:
    return _LOADER.load(name, sources, gradients)


load.__doc__ = Loader.load.__doc__
