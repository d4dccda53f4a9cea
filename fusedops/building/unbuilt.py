"""What `fusedops.torch` is after `import fusedops` alone."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class Unbuilt:
    """Stands for `fusedops.torch` where it does not import, because no library fits: has `jit`, and nothing else."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    @property
    def jit(self) -> ModuleType:
        return importlib.import_module("fusedops.building.jit")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # what Python itself asks of any object
            raise AttributeError(name)
        raise ImportError(self._sentence, name="fusedops.torch")


def torch() -> Any:
    """The package fusedops.torch, or what stands for it."""
    # `from fusedops import torch` asks for the attribute before it imports the module, and must then raise ImportError;
    # `fusedops.torch.jit` asks for it in the same way, and must find it. Only the frame that asks tells them apart.
    if sys._getframe(2).f_code.co_name == "_handle_fromlist":
        raise AttributeError("torch")
    try:
        return importlib.import_module("fusedops.torch")
    except ImportError as error:
        if error.name != "fusedops.torch":
            raise
        return Unbuilt(str(error))
