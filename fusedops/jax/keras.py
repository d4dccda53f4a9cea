"""Keras 3 layers over the fused operators, on Keras's JAX backend: `import fusedops.keras`.

They are the layers of `fusedops.tf.keras`. Optimizers are Keras's own: its JAX backend computes new variables in a
function without effects, so that nothing could be written in place.
"""

from __future__ import annotations

from fusedops.keras_layers import versions

versions.require("fusedops.jax.keras", "jax")

from fusedops.keras_layers import activations as activations  # noqa: E402
from fusedops.keras_layers.attention import GroupQueryAttention, MultiHeadAttention  # noqa: E402
from fusedops.keras_layers.conversion import convert, revert  # noqa: E402
from fusedops.keras_layers.dense import Dense, EinsumDense, GatedDense  # noqa: E402
from fusedops.keras_layers.dropout import Dropout, DropoutAdd  # noqa: E402
from fusedops.keras_layers.experts import Experts  # noqa: E402
from fusedops.keras_layers.linear_loss import LinearCrossEntropyLoss  # noqa: E402
from fusedops.keras_layers.losses import SparseCategoricalCrossentropy  # noqa: E402
from fusedops.keras_layers.normalization import LayerNormalization, RMSNormalization  # noqa: E402
from fusedops.keras_layers.residual import AddLayerNormalization, AddRMSNormalization  # noqa: E402
from fusedops.keras_layers.rotary import RotaryEmbedding  # noqa: E402
from fusedops.keras_layers.softmax import Softmax  # noqa: E402

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
    "convert",
    "revert",
]


def __dir__() -> list[str]:
    return sorted([*__all__, "activations"])
