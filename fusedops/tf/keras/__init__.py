"""Keras 3 layers, and a loss, over the fused operators: `import fusedops.tf.keras`.

A layer that Keras has under the same name is a subclass of it, with the same arguments, weights, config and mask, so
that saved models load either way; only `call` differs. Where no kernel applies, for example for an axis that is not the
last, Keras's own code computes the same result, and `layer.why_not()` says why.
"""

from __future__ import annotations

from fusedops.keras_layers import versions

versions.require("fusedops.tf.keras", "tensorflow")

from fusedops.keras_layers import activations as activations  # noqa: E402
from fusedops.keras_layers.attention import GroupQueryAttention, MultiHeadAttention  # noqa: E402
from fusedops.keras_layers.dense import Dense, EinsumDense, GatedDense  # noqa: E402
from fusedops.keras_layers.dropout import Dropout, DropoutAdd  # noqa: E402
from fusedops.keras_layers.experts import Experts  # noqa: E402
from fusedops.keras_layers.linear_loss import LinearCrossEntropyLoss  # noqa: E402
from fusedops.keras_layers.losses import SparseCategoricalCrossentropy  # noqa: E402
from fusedops.keras_layers.normalization import LayerNormalization, RMSNormalization  # noqa: E402
from fusedops.keras_layers.residual import AddLayerNormalization, AddRMSNormalization  # noqa: E402
from fusedops.keras_layers.rotary import RotaryEmbedding  # noqa: E402
from fusedops.keras_layers.softmax import Softmax  # noqa: E402
from fusedops.tf import symbolic as symbolic  # noqa: E402  for its effect: a TensorFlow may not have imported Keras
from fusedops.tf.keras import optimizers as optimizers  # noqa: E402
from fusedops.tf.keras.conversion import convert, revert  # noqa: E402

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
    return sorted([*__all__, "activations", "optimizers"])
