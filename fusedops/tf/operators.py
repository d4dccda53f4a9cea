"""Every operator of the core as a function of TensorFlow's tensors.

An operator is called as `operator(*inputs, **attributes)`, its inputs in the order of the declaration: tensors or
whatever TensorFlow makes one of, None for an absent optional, a number where a scalar is wanted.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from fusedops.functions.operators import Operators
from fusedops.tf import calls
from fusedops.tf.library import KEEP, RAW, TABLE

OPERATORS = cast(
    Operators, SimpleNamespace(**{name: calls.function(row, RAW[name], KEEP) for name, row in TABLE.items()})
)
