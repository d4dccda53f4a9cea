"""Layers for PyTorch over the fused operators: `import fusedops.torch.nn as fnn`.

Where torch.nn has a layer of this name, ours is a subclass of it: the same arguments, parameters and state-dict keys.
Only `forward` differs. What no kernel does, such as a softmax over a dimension that is not the last, torch's own code
computes, with the same result; `layer.why_not(x)` says so.

Under autocast a layer computes in the dtype that it is given.
"""

from __future__ import annotations

from fusedops.torch.nn.activations import GEGLU, BiasGELU, SwiGLU
from fusedops.torch.nn.losses import CrossEntropyLoss
from fusedops.torch.nn.normalization import LayerNorm, RMSNorm
from fusedops.torch.nn.residual import AddLayerNorm, AddRMSNorm
from fusedops.torch.nn.rotary import RotaryEmbedding
from fusedops.torch.nn.softmax import Softmax

__all__ = [
    "GEGLU",
    "AddLayerNorm",
    "AddRMSNorm",
    "BiasGELU",
    "CrossEntropyLoss",
    "LayerNorm",
    "RMSNorm",
    "RotaryEmbedding",
    "Softmax",
    "SwiGLU",
]


def __dir__() -> list[str]:
    return sorted(__all__)
