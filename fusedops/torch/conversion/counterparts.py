"""Which class a module of a known class becomes, and which it was."""

from __future__ import annotations

import torch

from fusedops.torch import nn
from fusedops.torch.conversion import hf

_OF_TORCH: dict[type, type] = {
    torch.nn.CrossEntropyLoss: nn.CrossEntropyLoss,
    torch.nn.LayerNorm: nn.LayerNorm,
    torch.nn.RMSNorm: nn.RMSNorm,
    torch.nn.Softmax: nn.Softmax,
}
_ORIGINALS = {counterpart: kind for kind, counterpart in _OF_TORCH.items()}


def counterpart(kind: type) -> type | None:
    """What stands in for this class, if something does.

    Raises:
        ImportError, AttributeError: this version of transformers lacks something that the counterpart relies on.
        hf.layer.UnknownClass: the class is another than in the versions that are known.
    """
    return _OF_TORCH.get(kind) or hf.counterpart(kind)


def is_known(kind: type) -> bool:
    return kind in _OF_TORCH or hf.is_known(kind)


def original(kind: type) -> type | None:
    """The class that this one is the counterpart of."""
    return _ORIGINALS.get(kind) or vars(kind).get("original")
