"""Keras 3 layers, and a loss, over the fused operators: `import fusedops.tf.keras`.

A layer that Keras has under the same name is a subclass of it, with the same arguments, weights, config and mask, so
that saved models load either way; only `call` differs. Where no kernel applies, for example for an axis that is not the
last, Keras's own code computes the same result, and `layer.why_not()` says why.
"""

from __future__ import annotations

from fusedops.keras_layers import versions

versions.require("fusedops.tf.keras", "tensorflow")

from fusedops.keras_layers import activations as activations  # noqa: E402
from fusedops.keras_layers import layers  # noqa: E402
from fusedops.keras_layers.layers import *  # noqa: E402, F403
from fusedops.tf import symbolic as symbolic  # noqa: E402  for its effect: a TensorFlow may not have imported Keras
from fusedops.tf.keras import optimizers as optimizers  # noqa: E402
from fusedops.tf.keras.conversion import convert as convert  # noqa: E402
from fusedops.tf.keras.conversion import revert as revert  # noqa: E402

__all__: list[str] = []
__all__ += layers.__all__
__all__ += ["convert", "revert"]


def __dir__() -> list[str]:
    return sorted([*__all__, "activations", "optimizers"])
