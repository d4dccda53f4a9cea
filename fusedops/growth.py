"""The table of operators in a process: what is done for every operator, those that are added later too."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

from fusedops import declarations
from fusedops.declarations import Operator


class Growth:
    """Of the table of one framework."""

    def __init__(self, library: ctypes.CDLL, table: dict[str, Operator]) -> None:
        self.library, self.table = library, table
        # Held from before an operator is added to the core's table until it is the framework's: no other thread
        # registers it in between, without its formula or in half of the libraries.
        self.lock = threading.RLock()
        self._known = len(table)  # operators of the core's table that are in ours, or that were refused
        self._callbacks: list[Callable[[Operator], object]] = []

    def for_each(self, callback: Callable[[Operator], object]) -> None:
        """Calls `callback` with every row of the table, and later with every row that is added."""
        with self.lock:
            for row in list(self.table.values()):
                callback(row)
            self._callbacks.append(callback)

    def grow(self, register: Callable[[Sequence[Operator]], dict[str, Exception]]) -> None:
        """Takes the new operators of the core's table into ours. One that is refused is never tried again, and does not
        keep others out.

        Args:
            register: registers operators with the framework. Returns the errors of those that it refuses, by name.

        Raises:
            Exception: The first refusal, after all other operators were taken.
        """
        with self.lock:
            rows = declarations.read_from(self.library, self._known)
            if not rows:
                return
            self._known += len(rows)
            refused = register(rows)
            self._extend([row for row in rows if row.name not in refused], refused)
        for error in refused.values():
            raise error

    def _extend(self, rows: Sequence[Operator], refused: dict[str, Exception]) -> None:
        """Callback by callback, since a row's derivative may call a row behind it."""
        self.table.update({row.name: row for row in rows})
        for callback in self._callbacks:
            for row in rows:
                if row.name in refused:
                    continue
                try:
                    callback(row)
                except Exception as error:
                    refused[row.name] = error
                    del self.table[row.name]


def add(library: ctypes.CDLL, operators: Callable[[], Any]) -> None:
    """Adds operators of a library of their own to the core of a binding's library, by the function with which it shows
    them: core_cuda/core/declaration/library.h."""
    operators.restype = ctypes.c_void_p  # type: ignore[attr-defined]
    library.fusedops_add_operators.restype = ctypes.c_char_p
    refused = library.fusedops_add_operators(ctypes.c_void_p(operators()))
    if refused is not None:
        raise ValueError(refused.decode())
