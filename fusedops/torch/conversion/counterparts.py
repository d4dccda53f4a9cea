"""Which class a module of a known class becomes, and which it was."""

from __future__ import annotations

import torch

from fusedops.torch import nn
from fusedops.torch.conversion import hf
from fusedops.torch.nn.layer import FusedLayer

_OF_TORCH: dict[type, type] = {
    torch.nn.CrossEntropyLoss: nn.CrossEntropyLoss,
    torch.nn.LayerNorm: nn.LayerNorm,
    torch.nn.RMSNorm: nn.RMSNorm,
    torch.nn.Softmax: nn.Softmax,
}


def counterpart(kind: type) -> type | None:
    """What stands in for this class, if something does.

    Raises:
        ImportError, AttributeError: this version of transformers lacks something that the counterpart relies on.
    """
    return _OF_TORCH.get(kind) or hf.counterpart(kind)


def is_known(kind: type) -> bool:
    return kind in _OF_TORCH or hf.is_known(kind)


def original(kind: type) -> type | None:
    """The class that this one is the counterpart of."""
    if not issubclass(kind, FusedLayer):
        return None
    return next((base for base in kind.__mro__ if is_known(base) and counterpart(base) is kind), None)
