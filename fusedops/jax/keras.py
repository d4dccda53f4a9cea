"""Keras 3 layers over the fused operators, on Keras's JAX backend: `import fusedops.keras`.

They are the layers of `fusedops.tf.keras`. Optimizers are Keras's own: its JAX backend computes new variables in a
function without effects, so that nothing could be written in place.
"""

from __future__ import annotations

from fusedops.keras_layers import versions

versions.require("fusedops.jax.keras", "jax")

from fusedops.keras_layers import activations as activations  # noqa: E402
from fusedops.keras_layers import layers  # noqa: E402
from fusedops.keras_layers.conversion import convert as convert  # noqa: E402
from fusedops.keras_layers.conversion import revert as revert  # noqa: E402
from fusedops.keras_layers.layers import *  # noqa: E402, F403

__all__: list[str] = []
__all__ += layers.__all__
__all__ += ["convert", "revert"]


def __dir__() -> list[str]:
    return sorted([*__all__, "activations"])
