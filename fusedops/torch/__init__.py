"""fusedops for PyTorch: `import fusedops.torch as fo`.

The functions of `fusedops.functions` over torch's tensors. They are differentiable to any order, in reverse and forward
mode, and work under torch.compile, torch.export, torch.func, autocast and CUDA graphs. The bare operators are
`torch.ops.fusedops.<name>`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fusedops import functions, loading

if TYPE_CHECKING:
    from fusedops.functions import *  # noqa: F403
    from fusedops.torch.conversion import convert, revert  # noqa: F401

loading.library("torch")  # says what is missing before torch is imported

from fusedops.torch.front import FUNCTIONS as ops  # noqa: E402, F401


def __getattr__(name: str) -> Any:
    if name in ("jit", "nn"):  # on first use
        return importlib.import_module(f"fusedops.torch.{name}")
    if name in ("convert", "revert"):
        return getattr(importlib.import_module("fusedops.torch.conversion"), name)
    raise AttributeError(f"module 'fusedops.torch' has no attribute {name!r}")


_public = functions.public(globals())
globals().update(_public, Tensor=Any)  # their annotations speak of Tensor
__all__ = list(_public)
