"""Expressions as functions of JAX's arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fusedops import checks
from fusedops.expressions.function import Elementwise
from fusedops.expressions.registry import Registry
from fusedops.jax import library
from fusedops.jax.derivatives import FORMULA_NAMES
from fusedops.jax.operators import OPERATORS, constant
from fusedops.jax.tensors import TensorLike, is_array

_REGISTRY = Registry(library.LIBRARY, library.OPERATOR_TABLE, library.added, OPERATORS)
FORMULA_NAMES.add("_operator", _REGISTRY.operator)  # no operator's name begins with an underscore


class _Elementwise(Elementwise[TensorLike, jax.Array]):
    registry = _REGISTRY
    tensors = frozenset[type]()

    def _with_numbers(self, values: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A number becomes an array of one element, of the arrays' rank, so that jax.vmap folds the call."""
        numbers = tuple(map(checks.is_number, values))
        operator = self.registry.operator(self._expression.recorded(numbers))
        arrays = [x for x, number in zip(values, numbers, strict=True) if not number and is_array(x)]
        dtype = jnp.float64 if any(x.dtype == jnp.float64 for x in arrays) else jnp.float32
        rank = max((x.ndim for x in arrays), default=0)
        given = (constant(self._double(i, x), dtype, rank) if numbers[i] else x for i, x in enumerate(values))
        return operator, tuple(given)


def elementwise(expression: str, inputs: Sequence[str] | None, name: str | None) -> Elementwise[TensorLike, jax.Array]:
    return _Elementwise(expression, inputs, name)
