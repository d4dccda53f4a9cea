"""The compiled library, as TensorFlow loads it, and the table that it was made of.

The table grows. What must be done for an operator is done by `for_each`, for those that there are and for those that a
process adds.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fusedops import declarations, growth, loading
from fusedops.declarations import Attribute, Operator
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
GROWTH = growth.Growth(_CDLL, TABLE)
for_each = GROWTH.for_each


@text.unconverted
def added() -> None:
    """Makes operators of TensorFlow of the rows that were added to the core's table, if there are any."""
    GROWTH.grow(_register)


def _register(rows: Sequence[Operator]) -> dict[str, Exception]:
    sentence = _CDLL.fusedops_tf_register_new()
    refused: dict[str, Exception] = {}
    for row in rows:
        made = _op_list(row)
        if not made:
            said = sentence.decode() if sentence else f"fusedops.{row.name}: TensorFlow cannot have it"
            refused[row.name] = RuntimeError(said)
            continue
        try:
            RAW[row.name] = internals.generated(row.type, made)
        except (SyntaxError, StopIteration) as error:
            refused[row.name] = RuntimeError(f"fusedops.{row.name}: TensorFlow generates no function of it: {error}")
    return refused


@text.unconverted
def add(operators: Callable[[], Any]) -> None:
    """Adds operators of a library of their own, by the function with which it shows them."""
    with GROWTH.lock:
        growth.add(_CDLL, operators)
        added()


def _op_list(row: Operator) -> bytes:
    """TensorFlow's declaration of an operator; nothing, if it has refused it."""
    size = ctypes.c_int64()
    found: Any = _CDLL.fusedops_tf_op_list(row.name.encode(), ctypes.byref(size))
    return ctypes.string_at(found, size.value) if found else b""


def decoded(attribute: Attribute, value: Any) -> Any:
    """An attribute of an OpDef as the Python value that was given for it."""
    if attribute.type in ("bool", "int"):
        return value
    return attribute.read(value.decode() if isinstance(value, bytes) else value)
