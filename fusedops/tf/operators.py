"""Every operator of the core as a function of TensorFlow's tensors.

An operator is called as `operator(*inputs, **attributes)`, its inputs in the order of the declaration: tensors or
whatever TensorFlow makes one of, None for an absent optional, a number where a scalar is wanted.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from fusedops.declarations import Operator
from fusedops.tf import calls
from fusedops.tf.library import KEEP, RAW, for_each

if TYPE_CHECKING:
    from fusedops.functions.operators import Operators

OPERATORS = cast("Operators", SimpleNamespace())


def _offer(row: Operator) -> None:
    setattr(OPERATORS, row.name, calls.function(row, RAW[row.name], KEEP))


for_each(_offer)
