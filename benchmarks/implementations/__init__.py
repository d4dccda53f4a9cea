"""The implementations: fusedops and its baselines, in each framework."""

from importlib import import_module
from typing import Any


def side_of(framework: str) -> Any:
    """The framework's module, which draws inputs, evaluates formulas and builds implementations."""
    return import_module(f"benchmarks.implementations.{framework}.side")
