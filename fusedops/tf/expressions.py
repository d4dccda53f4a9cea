"""Expressions as functions of TensorFlow tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fusedops import checks
from fusedops.expressions.function import Elementwise
from fusedops.expressions.registry import Registry
from fusedops.tf import calls, internals, library, naming, text
from fusedops.tf.derivatives import FORMULA_NAMES
from fusedops.tf.operators import OPERATORS
from fusedops.tf.tensors import TensorLike

_REGISTRY = Registry(ctypes.CDLL(str(library.LIBRARY)), library.OPERATOR_TABLE, library.added, OPERATORS)
FORMULA_NAMES.add("_operator", _REGISTRY.operator)  # no operator's name begins with an underscore


class _Elementwise(Elementwise[TensorLike, tf.Tensor]):
    registry = _REGISTRY
    tensors = frozenset({internals.EagerTensor})

    @text.unconverted
    def __call__(self, /, *values: TensorLike | float, **named: TensorLike | float) -> tf.Tensor | Any:
        try:
            return super().__call__(*values, **named)
        except TypeError:  # checked only now, so that other calls do not pay for the check
            if not naming.are_symbolic(*values, *named.values()):
                raise
        from fusedops.tf import symbolic

        return symbolic.call_expression(self.given, values, named)

    def _with_numbers(self, values: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A number becomes a tensor of one element: TensorFlow's operators take nothing else."""
        numbers = tuple(map(checks.is_number, values))
        operator = self.registry.operator(self._expression.recorded(numbers))
        declared = library.TABLE[operator.__name__]
        given: list[Any] = [
            (self._double(i, x) if number else calls.tensor(declared, declared.inputs[i], x))
            for i, (x, number) in enumerate(zip(values, numbers, strict=True))
        ]
        tensors = [x for x, number in zip(given, numbers, strict=True) if not number]
        dtype = tf.float64 if any(x.dtype is tf.float64 for x in tensors) else tf.float32
        # In a graph, a constant has the rank of the tensors, so that tf.vectorized_map folds the call.
        ranks = [0 if tf.executing_eagerly() else x.shape.rank for x in tensors]
        rank = 0 if None in ranks else max(ranks)
        return operator, tuple(calls.constant(x, dtype, rank) if numbers[i] else x for i, x in enumerate(given))


def elementwise(expression: str, inputs: Sequence[str] | None, name: str | None) -> Elementwise[TensorLike, tf.Tensor]:
    return _Elementwise(expression, inputs, name)
