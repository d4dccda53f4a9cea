"""Autograd in C++: a second library beside the operators', which is loaded if it loads.

It goes with one minor version of torch. Without it autograd is in Python, of the same derivatives: `autograd.py`.
"""

from __future__ import annotations

import ctypes

import torch

from fusedops import loading
from fusedops.declarations import Operator
from fusedops.torch import library


def _load() -> str | None:
    """Loads the library, or says why it cannot be."""
    sentence = loading.autograd_fault(torch.__version__)
    if sentence:
        return sentence
    file = loading.autograd_file(torch.__version__)
    try:
        register = ctypes.CDLL(str(loading.FRAMEWORKS["torch"].folder / file)).fusedops_register_autograd
    except OSError as error:
        return f"{file} does not load: {error}. Run: make build-torch"
    register.restype = ctypes.c_char_p

    def register_new(row: Operator | None = None) -> None:
        """Whichever row it is for: registers those that are not registered."""
        if (refused := register()) is not None:
            raise RuntimeError(refused.decode())

    try:
        register_new()
    except RuntimeError as error:
        return f"{file} does not fit: {error}. Run: make build-torch"
    library.for_each(register_new)
    return None


fault = _load()  # None: torch.ops.fusedops.<op> has its autograd from there
