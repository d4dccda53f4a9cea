"""Every operator of the core as a function of TensorFlow tensors.

An operator is called as `operator(*inputs, **attributes)`, its inputs in the order of the declaration: tensors or
whatever TensorFlow makes one of, None for an absent optional, a number where a scalar is wanted.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import tensorflow as tf

from fusedops import checks, declarations, loading
from fusedops.tf import calls

LIBRARY = loading.library("tf")
_RAW = tf.load_op_library(str(LIBRARY))  # first: TensorFlow lists the operators that appear while it loads a library
DECLARED = declarations.read(ctypes.CDLL(str(LIBRARY)))
if not hasattr(_RAW, f"fusedops_{next(iter(DECLARED))}"):
    raise ImportError(
        "fusedops.tf must be imported before another copy of its library is loaded: "
        f"TensorFlow knows the operators already, from elsewhere than {LIBRARY}"
    )

RAW = {name: getattr(_RAW, f"fusedops_{name}") for name in DECLARED}
OPERATORS = SimpleNamespace(
    renamed=checks.renamed,
    **{name: calls.function(operator, RAW[name], _RAW.fusedops_keep) for name, operator in DECLARED.items()},
)
