"""The types of the functions' arguments and results."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import jax
import numpy as np

Tensor: TypeAlias = jax.Array


class HoldsArray(Protocol):
    """An object that JAX converts to an array, such as a variable of Flax."""

    def __jax_array__(self) -> jax.Array: ...


TensorLike: TypeAlias = jax.Array | np.ndarray[Any, Any] | HoldsArray
Variable: TypeAlias = TensorLike


def is_array(value: Any) -> bool:
    """True if the functions take the value as a tensor."""
    return isinstance(value, (jax.Array, np.ndarray)) or hasattr(value, "__jax_array__")
