"""The public functions of fusedops.jax: those of fusedops/functions/ over JAX's arrays.

The build writes their types, for editors and type checkers, into functions.pyi.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from fusedops import checks
from fusedops.functions import define
from fusedops.jax import derivatives, expressions
from fusedops.jax.library import array
from fusedops.jax.operators import OPERATORS as ops
from fusedops.jax.randomness import seed_of
from fusedops.jax.recording import may_keep_gradient, may_need_gradient
from fusedops.jax.tensors import Tensor, TensorLike, Variable, is_array


def integers_of(function: str, name: str, value: Tensor | int | None, q: Tensor) -> Tensor | None:
    """A tensor or None unchanged; an integer as a tensor of q's leading dimensions."""
    integer = checks.one_for_all(function, name, value)
    if integer is None or not is_array(q):  # the operator refuses other types
        return value
    one = array(np.array(integer, np.int64))
    return jnp.broadcast_to(one, (*jnp.shape(q)[:-3], *one.shape))


def ring_of_context(function: str, **unsupported: object) -> None:
    """None: JAX has no context in which attention shards positions over processes."""


__all__ = define(globals())
