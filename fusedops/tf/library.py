"""The compiled library, as TensorFlow loads it, and the table that it was made of."""

from __future__ import annotations

import ctypes

import tensorflow as tf

from fusedops import declarations, loading

LIBRARY = loading.library("tf")
_RAW = tf.load_op_library(str(LIBRARY))  # first: TensorFlow lists the operators that appear while it loads a library
_CORE = declarations.read(ctypes.CDLL(str(LIBRARY)))
TABLE = _CORE.table
DTYPES = tuple(map(tf.as_dtype, _CORE.dtypes))  # by the core's numbers
if not hasattr(_RAW, f"fusedops_{next(iter(TABLE))}"):
    raise ImportError(
        "fusedops.tf must be imported before another copy of its library is loaded: "
        f"TensorFlow knows the operators already, from elsewhere than {LIBRARY}"
    )

RAW = {name: getattr(_RAW, f"fusedops_{name}") for name in TABLE}  # TensorFlow's own functions of them
KEEP = _RAW.fusedops_keep
