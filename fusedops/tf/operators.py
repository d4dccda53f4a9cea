"""Every operator of the core as a function of TensorFlow tensors.

An operator is called as `operator(*inputs, **attributes)`, with inputs in declared order: tensors or values that
TensorFlow converts, None for an absent optional input, a number for a scalar.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from fusedops.tf import calls
from fusedops.tf.library import KEEP, RAW, for_each

if TYPE_CHECKING:
    from fusedops.functions.operators import Operators

OPERATORS = cast("Operators", SimpleNamespace())


for_each(lambda operator: setattr(OPERATORS, operator.name, calls.function(operator, RAW[operator.name], KEEP)))
