"""Keras 3 layers, and a loss, over the fused operators: `import fusedops.tf.keras`.

Where Keras has a layer of this name, ours is a subclass of it: the same arguments, weights, config and mask, so that a
saved model moves both ways. Only `call` differs. What no kernel does, such as an axis that is not the last, Keras's own
code computes, with the same result; `layer.why_not()` says so.
"""

from __future__ import annotations

from fusedops.tf.keras import versions

versions.require()

from fusedops.tf import symbolic as symbolic  # noqa: E402  for its effect: a TensorFlow may not have imported Keras
from fusedops.tf.keras import activations as activations  # noqa: E402
from fusedops.tf.keras.attention import MultiHeadAttention  # noqa: E402
from fusedops.tf.keras.conversion import convert, revert  # noqa: E402
from fusedops.tf.keras.dense import Dense, GatedDense  # noqa: E402
from fusedops.tf.keras.losses import SparseCategoricalCrossentropy  # noqa: E402
from fusedops.tf.keras.normalization import LayerNormalization, RMSNormalization  # noqa: E402
from fusedops.tf.keras.residual import AddLayerNormalization, AddRMSNormalization  # noqa: E402
from fusedops.tf.keras.rotary import RotaryEmbedding  # noqa: E402
from fusedops.tf.keras.softmax import Softmax  # noqa: E402

__all__ = [
    "AddLayerNormalization",
    "AddRMSNormalization",
    "Dense",
    "GatedDense",
    "LayerNormalization",
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
