"""The compiled library as TensorFlow loads it, and its table of operators.

The table can grow. `for_each` runs a function for every operator, including those that a process adds later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fusedops import declarations, loading, operator_table
from fusedops.declarations import Attribute, Operator
from fusedops.tf import internals, text

LIBRARY = loading.library("tf")
_RAW = tf.load_op_library(str(LIBRARY))  # first: TensorFlow lists the operators that appear while it loads a library
_CDLL = ctypes.CDLL(str(LIBRARY))
_CORE = declarations.read(_CDLL)
TABLE = _CORE.table
BUILT_IN = frozenset(TABLE)  # the operators that no process has added
DTYPES = tuple(map(tf.as_dtype, _CORE.dtypes))  # by the core's numbers
if not hasattr(_RAW, f"fusedops_{next(iter(TABLE))}"):
    raise ImportError(
        "fusedops.tf must be imported before another copy of its library is loaded: "
        f"TensorFlow knows the operators already, from elsewhere than {LIBRARY}"
    )

RAW = {name: getattr(_RAW, f"fusedops_{name}") for name in TABLE}  # the functions that TensorFlow generates
KEEP = _RAW.fusedops_keep

_CDLL.fusedops_tf_register_new.restype = ctypes.c_char_p
_CDLL.fusedops_tf_op_list.restype = ctypes.c_void_p
OPERATOR_TABLE = operator_table.OperatorTable(_CDLL, TABLE)
for_each = OPERATOR_TABLE.for_each


@text.unconverted
def added() -> None:
    """Registers the operators that were added to the core's table with TensorFlow."""
    OPERATOR_TABLE.extend(_register)


def _register(operators: Sequence[Operator]) -> dict[str, Exception]:
    sentence = _CDLL.fusedops_tf_register_new()
    refused: dict[str, Exception] = {}
    size = ctypes.c_int64()
    for operator in operators:
        op_list: Any = _CDLL.fusedops_tf_op_list(operator.name.encode(), ctypes.byref(size))
        if not op_list:
            message = sentence.decode() if sentence else f"fusedops.{operator.name}: TensorFlow cannot have it"
            refused[operator.name] = RuntimeError(message)
            continue
        try:
            RAW[operator.name] = internals.generated(operator.type, ctypes.string_at(op_list, size.value))
        except (SyntaxError, StopIteration) as error:
            message = f"fusedops.{operator.name}: TensorFlow generates no function of it: {error}"
            refused[operator.name] = RuntimeError(message)
    return refused


@text.unconverted
def add(operators: Callable[[], Any]) -> None:
    """Adds the operators that a library exports by this function."""
    with OPERATOR_TABLE.lock:
        operator_table.add(_CDLL, operators)
        added()


def decoded(attribute: Attribute, value: Any) -> Any:
    """The Python value of an OpDef's attribute."""
    if attribute.type in ("bool", "int"):
        return value
    return attribute.read(value.decode() if isinstance(value, bytes) else value)
