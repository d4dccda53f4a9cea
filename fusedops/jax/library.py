"""The compiled library, its table of operators, and its handlers, which XLA calls.

The table can grow. `for_each(f)` calls f for each operator: for the present ones at once, and for later ones when they
are added.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fusedops import declarations, loading, operator_table

TARGET = "fusedops"  # the name of the custom call: xla_binding/call.h
# XLA's names of the platforms, JAX's names in lowering rules, and the handlers.
_HANDLERS = {"cpu": "fusedops_xla_on_host", "CUDA": "fusedops_xla_on_cuda"}


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(loading.library("jax")))
    built = ctypes.c_int64(), ctypes.c_int64()
    library.fusedops_jax_api_version(*map(ctypes.byref, built))
    headers = Path(jax.ffi.include_dir(), "xla/ffi/api/c_api.h").read_text()
    here = [int(number) for number in re.findall(r"#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)", headers)]
    major, minor = (number.value for number in built)
    if [major] != here[:1] or minor > here[1]:  # XLA would only say later that there is no handler
        version = f"{here[0]}.{here[1]}"
        raise ImportError(
            f"fusedops.jax was built for version {major}.{minor} of XLA's interface to handlers; the installed jaxlib "
            f"has version {version}. Run: make build-jax",
            name="fusedops.jax",
        )
    for platform, symbol in _HANDLERS.items():
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(getattr(library, symbol)), platform=platform)
    return library


LIBRARY = _load()
LIBRARY.fusedops_jax_workspace.restype = ctypes.c_int64
_CORE = declarations.read(LIBRARY)
TABLE = _CORE.table
BUILT_IN = frozenset(TABLE)  # the operators that no process has added
DTYPES = _CORE.dtypes  # names, by the core's numbers

OPERATOR_TABLE = operator_table.OperatorTable(LIBRARY, TABLE)
for_each = OPERATOR_TABLE.for_each


def added() -> None:
    """Takes the operators that were added to the core's table."""
    OPERATOR_TABLE.extend(lambda operators: {})


def add(operators: Callable[[], Any]) -> None:
    """Adds the operators that a library exports by this function."""
    with OPERATOR_TABLE.lock:
        operator_table.add(LIBRARY, operators)
        added()


def has_int64() -> bool:
    """True if JAX has int64. Otherwise two words of uint32, in a last dimension, stand for an integer of the core."""
    return bool(jax.config.jax_enable_x64)


def array(value: Any) -> Any:
    """A tensor as JAX's array. Without int64, JAX truncates NumPy's integers: larger ones become words, which the core
    reads, and refuses in its own words where they are out of range."""
    if isinstance(value, jax.Array):  # asarray takes longer than a small kernel
        return value
    is_truncated = isinstance(value, np.ndarray) and value.dtype == np.int64 and not has_int64()
    if is_truncated and np.any(value != value.astype(np.int32)):
        value = np.ascontiguousarray(value).view(np.uint32).reshape(*value.shape, 2)
    return jax.numpy.asarray(value)


def words(dtype: Any, shape: tuple[int, ...]) -> list[int]:
    """A tensor as the core's inference reads it: dtype, rank and sizes."""
    name = dtype.name  # of a key of jax.random too, which is no dtype of NumPy
    if name == "uint32" and shape[-1:] == (2,):
        name, shape = "int64", shape[:-1]
    place = DTYPES.index(name) if name in DTYPES else len(DTYPES)
    return [place, len(shape), *shape]


def shape(x: Any) -> tuple[int, ...]:
    """The shape of a tensor in the core."""
    return tuple(words(x.dtype, tuple(x.shape))[2:])


def tensor(dtype: str, shape: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """The dtype and shape in JAX of a tensor of the core."""
    if dtype == "int64" and not has_int64():
        return np.dtype("uint32"), (*shape, 2)
    return jax.numpy.dtype(dtype), shape
