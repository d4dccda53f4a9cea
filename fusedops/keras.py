"""Keras 3 layers over the fused operators, on Keras's TensorFlow or JAX backend: `import fusedops.keras as fk`.

On TensorFlow these are the names of `fusedops.tf.keras`, on JAX those of `fusedops.jax.keras`. A layer of both has the
same weights and config, so that saved models load on either backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusedops.keras_layers import versions

versions.require("fusedops.keras", *versions.PACKAGES)

import keras  # noqa: E402

if TYPE_CHECKING or keras.backend.backend() == "tensorflow":
    from fusedops.tf.keras import *  # noqa: F403
    from fusedops.tf.keras import __all__, activations
else:
    from fusedops.jax.keras import *  # noqa: F403
    from fusedops.jax.keras import __all__, activations  # noqa: F401
