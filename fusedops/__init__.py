"""One set of fused kernels for PyTorch (`import fusedops.torch`), TensorFlow (`import fusedops.tf`) and JAX (`import
fusedops.jax`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusedops.config import show_config
from fusedops.version import VERSION as __version__

__all__ = ["__version__", "show_config"]

if TYPE_CHECKING:
    from fusedops import torch as torch
else:  # hidden from type checkers, which would accept any attribute

    def __getattr__(name: str) -> Any:
        if name == "torch":  # fusedops.torch.jit.load() needs no other import, built or not
            from fusedops.building.unbuilt import torch

            return torch()
        raise AttributeError(f"module 'fusedops' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, "torch", *{"tf", "jax"} & globals().keys()})
