"""The attribute `fusedops.torch` after `import fusedops` alone."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class Unbuilt:
    """A placeholder for `fusedops.torch` if it cannot be imported because no library fits. It has only `jit`."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    @property
    def jit(self) -> ModuleType:
        return importlib.import_module("fusedops.building.jit")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Python's own protocols look these up on any object
            raise AttributeError(name)
        raise ImportError(self._sentence, name="fusedops.torch")


def torch() -> Any:
    """The package fusedops.torch, or its placeholder."""
    # `from fusedops import torch` looks the attribute up before importing the module, and must then raise ImportError.
    # `fusedops.torch.jit` looks it up the same way and must find it. Only the calling frame distinguishes the two.
    if sys._getframe(2).f_code.co_name == "_handle_fromlist":
        raise AttributeError("torch")
    try:
        return importlib.import_module("fusedops.torch")
    except ImportError as error:
        if error.name != "fusedops.torch":
            raise
        return Unbuilt(str(error))
