"""Expressions as functions of torch's tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusedops import checks
from fusedops.expressions.function import Elementwise
from fusedops.expressions.registry import Registry
from fusedops.torch import internals, library
from fusedops.torch.derivatives import FORMULA_NAMES
from fusedops.torch.operators import OPERATORS

_REGISTRY = Registry(library.LIBRARY, library.OPERATOR_TABLE, library.added, OPERATORS)
_is_compiling = torch.compiler.is_compiling
_is_recorded = internals.is_recorded

FORMULA_NAMES.add("_operator", _REGISTRY.operator)  # no operator's name begins with an underscore


class _Elementwise(Elementwise[torch.Tensor, torch.Tensor]):
    registry = _REGISTRY
    tensors = frozenset({torch.Tensor, torch.nn.Parameter})

    def __init__(self, expression: str, inputs: Sequence[str] | None = None, name: str | None = None) -> None:
        super().__init__(expression, inputs, name)
        recorded = self._expression.recorded
        self._recorded: Callable[[tuple[bool, ...]], str] = internals.before_tracing(
            lambda numbers: recorded(numbers).name
        )

    def _with_numbers(self, values: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The operator and its inputs.

        Eager code calls an operator that takes numbers, which needs no memory for them. A graph gets tensors: a new
        value needs no compilation, and a saved graph needs only the operators that `__init__` adds.
        """
        numbers = tuple(map(checks.is_number, values))
        values = tuple(self._double(i, x) if numbers[i] else x for i, x in enumerate(values))
        if not (_is_compiling() or _is_recorded()):
            return self.registry.operator(self._expression.definition(numbers)), values
        operator = getattr(self.registry.operators, self._recorded(numbers))
        tensors = [x for x in values if isinstance(x, torch.Tensor)]
        if tensors:
            dtype = torch.float64 if any(x.dtype == torch.float64 for x in tensors) else torch.float32
            # A product, since the compiler treats the argument of scalar_tensor() as a constant. It has the rank of the
            # tensors, so that vmap folds the call.
            shape = (1,) * max(x.dim() for x in tensors)
            one = torch.ones(shape, dtype=dtype, device=tensors[0].device)
            values = tuple(x * one if numbers[i] else x for i, x in enumerate(values))
        return operator, values


def elementwise(
    expression: str, inputs: Sequence[str] | None, name: str | None
) -> Elementwise[torch.Tensor, torch.Tensor]:
    return _Elementwise(expression, inputs, name)
