"""Expressions as functions of torch's tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusedops.expressions.function import Elementwise
from fusedops.expressions.program import Definition
from fusedops.expressions.rows import Rows
from fusedops.torch import internals, library
from fusedops.torch.derivatives import OF_FORMULAS
from fusedops.torch.operators import OPERATORS

_ROWS = Rows(library.LIBRARY, library.added, OPERATORS)


def _of_formula(definition: Definition) -> Any:
    _ROWS.operator(definition)
    return getattr(OF_FORMULAS, definition.name)


OF_FORMULAS.row = _of_formula


class _Elementwise(Elementwise):
    rows = _ROWS
    tensors = frozenset({torch.Tensor, torch.nn.Parameter})

    def _naming(self) -> Callable[[tuple[bool, ...]], str]:
        return internals.before_tracing(super()._naming())


def elementwise(expression: str, inputs: Sequence[str] | None, name: str | None) -> Elementwise:
    return _Elementwise(expression, inputs, name)
