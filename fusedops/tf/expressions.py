"""Expressions as functions of TensorFlow's tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from fusedops.expressions.function import Elementwise
from fusedops.expressions.rows import Rows
from fusedops.tf import internals, library, naming, text
from fusedops.tf.derivatives import OF_FORMULAS
from fusedops.tf.operators import OPERATORS

_ROWS = Rows(ctypes.CDLL(str(library.LIBRARY)), library.added, OPERATORS)
OF_FORMULAS.row = _ROWS.operator


class _Elementwise(Elementwise):
    rows = _ROWS
    tensors = frozenset({internals.EagerTensor})

    @text.unconverted
    def __call__(self, *values: Any) -> Any:
        try:
            return super().__call__(*values)
        except TypeError:  # asked only now, so that other calls do not wait for the answer
            if not naming.are_symbolic(*values):
                raise
        from fusedops.tf import symbolic

        return symbolic.call_expression(self.given, values)


def elementwise(expression: str, inputs: Sequence[str] | None, name: str | None) -> Elementwise:
    return _Elementwise(expression, inputs, name)
