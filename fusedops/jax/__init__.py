"""fusedops for JAX: `import fusedops.jax as fo`.

The functions of `fusedops.functions` over JAX's arrays. They are differentiable to any order, in reverse and forward
mode, and work under jax.jit, vmap, checkpoint, scan and sharding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusedops import lazy, loading

loading.library("jax")  # says what is missing before JAX is imported

from fusedops.jax import functions  # noqa: E402
from fusedops.jax.functions import *  # noqa: E402, F403
from fusedops.jax.operators import OPERATORS as ops  # noqa: E402, F401

if TYPE_CHECKING:
    from fusedops.jax import keras as keras
    from fusedops.jax import nnx as nnx
    from fusedops.jax import optim as optim
    from fusedops.jax.libraries import load as load

# Lazy, since the operators need neither Keras nor Flax nor Optax.
_LAZY = {
    "keras": "fusedops.jax.keras",
    "load": "fusedops.jax.libraries",
    "nnx": "fusedops.jax.nnx",
    "optim": "fusedops.jax.optim",
}
if not TYPE_CHECKING:  # hidden from type checkers, which would accept any attribute
    __getattr__ = lazy.members(__name__, _LAZY)

__all__ = ["load"]
__all__ += functions.__all__


def __dir__() -> list[str]:
    return sorted({*__all__, *_LAZY, "ops"})
