"""The table of operators in a process: what is done for every operator, those that are added later too."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

from fusedops.declarations import Operator


class Growth:
    """Of the table of one framework."""

    def __init__(self, table: dict[str, Operator]) -> None:
        self.table = table
        self.lock = threading.RLock()  # held while the table grows
        self._callbacks: list[Callable[[Operator], object]] = []

    def for_each(self, callback: Callable[[Operator], object]) -> None:
        """Calls `callback` with every row of the table, and later with every row that is added."""
        with self.lock:
            for row in list(self.table.values()):
                callback(row)
            self._callbacks.append(callback)

    def extend(self, rows: Sequence[Operator]) -> None:
        """Callback by callback, since a row's derivative may call a row behind it."""
        self.table.update({row.name: row for row in rows})
        for callback in self._callbacks:
            for row in rows:
                callback(row)


def add(library: ctypes.CDLL, operators: Callable[[], Any]) -> None:
    """Adds operators of a library of their own to the core of a binding's library, by the function with which it shows
    them: core_cuda/core/declaration/library.h."""
    operators.restype = ctypes.c_void_p  # type: ignore[attr-defined]
    library.fusedops_add_operators.restype = ctypes.c_char_p
    refused = library.fusedops_add_operators(ctypes.c_void_p(operators()))
    if refused is not None:
        raise ValueError(refused.decode())
