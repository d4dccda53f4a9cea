"""Expressions as functions of TensorFlow's tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from fusedops.expressions.function import Elementwise
from fusedops.expressions.rows import Rows
from fusedops.tf import internals, library, text
from fusedops.tf.derivatives import OF_FORMULAS
from fusedops.tf.operators import OPERATORS

_ROWS = Rows(ctypes.CDLL(str(library.LIBRARY)), library.added, OPERATORS)
OF_FORMULAS.row = _ROWS.operator


class _Elementwise(Elementwise):
    __doc__ = Elementwise.__doc__
    tensors = frozenset({internals.EagerTensor})
    operator = staticmethod(_ROWS.operator)
    __call__ = text.unconverted(Elementwise.__call__)


def elementwise(expression: str, *, inputs: Sequence[str] | None = None, name: str | None = None) -> Elementwise:
    return _Elementwise(expression, inputs, name)
