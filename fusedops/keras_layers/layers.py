"""The layers and losses of every backend of Keras."""

from __future__ import annotations

from fusedops.keras_layers.attention import GroupQueryAttention, MultiHeadAttention
from fusedops.keras_layers.dense import Dense, EinsumDense, GatedDense
from fusedops.keras_layers.dropout import Dropout, DropoutAdd
from fusedops.keras_layers.experts import Experts
from fusedops.keras_layers.linear_loss import LinearCrossEntropyLoss
from fusedops.keras_layers.losses import SparseCategoricalCrossentropy
from fusedops.keras_layers.normalization import LayerNormalization, RMSNormalization
from fusedops.keras_layers.residual import AddLayerNormalization, AddRMSNormalization
from fusedops.keras_layers.rotary import RotaryEmbedding
from fusedops.keras_layers.softmax import Softmax

__all__ = [
    "AddLayerNormalization",
    "AddRMSNormalization",
    "Dense",
    "Dropout",
    "DropoutAdd",
    "EinsumDense",
    "Experts",
    "GatedDense",
    "GroupQueryAttention",
    "LayerNormalization",
    "LinearCrossEntropyLoss",
    "MultiHeadAttention",
    "RMSNormalization",
    "RotaryEmbedding",
    "Softmax",
    "SparseCategoricalCrossentropy",
]
