"""Layers for PyTorch over the fused operators: `import fusedops.torch.nn as fnn`.

A layer that torch.nn has under the same name is a subclass of it, with the same arguments, parameters and state-dict
keys; only `forward` differs. Where no kernel applies, for example for a softmax over a dimension that is not the last,
torch's own code computes the same result, and `layer.why_not(x)` says why.

Under autocast a layer computes in the dtype of its input; linear layers and attention compute in autocast's.
"""

from __future__ import annotations

from fusedops.torch.nn.activations import GEGLU, BiasGELU, SwiGLU
from fusedops.torch.nn.attention import MultiheadAttention
from fusedops.torch.nn.dropout import Dropout, DropoutAdd
from fusedops.torch.nn.experts import Experts
from fusedops.torch.nn.linear import GatedLinear, Linear
from fusedops.torch.nn.losses import CrossEntropyLoss, LinearCrossEntropyLoss
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
    "Dropout",
    "DropoutAdd",
    "Experts",
    "GatedLinear",
    "LayerNorm",
    "Linear",
    "LinearCrossEntropyLoss",
    "MultiheadAttention",
    "RMSNorm",
    "RotaryEmbedding",
    "Softmax",
    "SwiGLU",
]


def __dir__() -> list[str]:
    return sorted(__all__)
