"""The compiled library, as TensorFlow loads it, and the table that it was made of.

The table grows. What must be done for an operator is done by `for_each`, for those that there are and for those that a
process adds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fusedops import declarations, growth, loading
from fusedops.declarations import Operator
from fusedops.tf import internals, text

LIBRARY = loading.library("tf")
_RAW = tf.load_op_library(str(LIBRARY))  # first: TensorFlow lists the operators that appear while it loads a library
_CDLL = ctypes.CDLL(str(LIBRARY))
_CORE = declarations.read(_CDLL)
TABLE = _CORE.table
BUILT_IN = frozenset(TABLE)  # the names of the rows that no process has added
DTYPES = tuple(map(tf.as_dtype, _CORE.dtypes))  # by the core's numbers
if not hasattr(_RAW, f"fusedops_{next(iter(TABLE))}"):
    raise ImportError(
        "fusedops.tf must be imported before another copy of its library is loaded: "
        f"TensorFlow knows the operators already, from elsewhere than {LIBRARY}"
    )

RAW = {name: getattr(_RAW, f"fusedops_{name}") for name in TABLE}  # TensorFlow's own functions of them
KEEP = _RAW.fusedops_keep

_CDLL.fusedops_tf_register_new.restype = ctypes.c_char_p
_CDLL.fusedops_tf_op_list.restype = ctypes.c_void_p
_GROWTH = growth.Growth(TABLE)
for_each = _GROWTH.for_each
_known = len(TABLE)  # rows of the core's table that are here, or that TensorFlow has refused


@text.unconverted
def added() -> None:
    """Makes operators of TensorFlow of the rows that were added to the core's table, if there are any."""
    global _known
    with _GROWTH.lock:
        rows = declarations.read_from(_CDLL, _known)
        if not rows:
            return
        sentence = _CDLL.fusedops_tf_register_new()
        lists = {row.name: _op_list(row) for row in rows}
        RAW.update({row.name: internals.generated(row.type, lists[row.name]) for row in rows if lists[row.name]})
        _known += len(rows)
        refused = [row.name for row in rows if not lists[row.name]]
        _GROWTH.extend([row for row in rows if lists[row.name]])
    if refused:  # another thread may have got the sentence
        raise RuntimeError(sentence.decode() if sentence else f"fusedops.{refused[0]}: TensorFlow cannot have it")


@text.unconverted
def add(operators: Callable[[], Any]) -> None:
    """Adds operators of a library of their own, by the function with which it shows them."""
    growth.add(_CDLL, operators)
    added()


def _op_list(row: Operator) -> bytes:
    """TensorFlow's declaration of an operator; nothing, if it has refused it."""
    size = ctypes.c_int64()
    found: Any = _CDLL.fusedops_tf_op_list(row.name.encode(), ctypes.byref(size))
    return ctypes.string_at(found, size.value) if found else b""
