"""Loads the optional library with autograd in C++.

It is built for one minor version of torch. Without it, `autograd.py` evaluates the same derivatives in Python.
"""

from __future__ import annotations

import ctypes

import torch

from fusedops import loading
from fusedops.declarations import Operator
from fusedops.torch import library


def _load() -> str | None:
    """Loads the library. Returns the reason if that fails."""
    sentence = loading.autograd_fault(torch.__version__)
    if sentence:
        return sentence
    file = loading.autograd_file(torch.__version__)
    try:
        register = ctypes.CDLL(str(loading.FRAMEWORKS["torch"].folder / file)).fusedops_register_autograd
    except OSError as error:
        return f"{file} does not load: {error}. Run: make build-torch"
    register.restype = ctypes.c_char_p

    def register_new(_: Operator | None = None) -> None:
        """Registers all operators that are not registered yet."""
        if (refused := register()) is not None:
            raise RuntimeError(refused.decode())

    try:
        register_new()
    except RuntimeError as error:
        return f"{file} does not fit: {error}. Run: make build-torch"
    library.for_each(register_new)
    return None


fault = _load()  # None: loaded
