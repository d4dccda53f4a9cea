"""The public functions of fusedops.jax: those of fusedops/functions/ over JAX's arrays.

The build writes their types, for editors and type checkers, into functions.pyi.
"""

from __future__ import annotations

from fusedops.functions import define
from fusedops.jax import derivatives, expressions
from fusedops.jax.operators import OPERATORS as ops
from fusedops.jax.randomness import seed_of
from fusedops.jax.recording import may_need_gradient
from fusedops.jax.tensors import Tensor, TensorLike, Variable


def ring_of_context(function: str, **unsupported: object) -> None:
    """None: JAX has no context in which attention shards positions over processes."""


__all__ = define(globals())
