"""The operators of a process, including those that are added at run time."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

from fusedops import declarations
from fusedops.declarations import Operator


class OperatorTable:
    """Extends one framework's table of operators."""

    def __init__(self, library: ctypes.CDLL, table: dict[str, Operator]) -> None:
        self.library, self.table = library, table
        # Held from before an operator is added to the core's table until the framework has it: no other thread
        # registers it in between, without its formula or in some of the libraries only.
        self.lock = threading.RLock()
        self._known = len(table)  # number of the core's operators that are in `table` or were refused
        self._callbacks: list[Callable[[Operator], object]] = []

    def for_each(self, callback: Callable[[Operator], object]) -> None:
        """Calls `callback` with every operator of the table, and later with every added one."""
        with self.lock:
            for operator in list(self.table.values()):
                callback(operator)
            self._callbacks.append(callback)

    def extend(self, register: Callable[[Sequence[Operator]], dict[str, Exception]]) -> None:
        """Adds the new operators of the core's table to `table`. A refused operator is never tried again, and does not
        keep others out.

        Args:
            register: registers operators with the framework. Returns the errors of those that it refuses, by name.

        Raises:
            Exception: The first refusal, after all other operators were taken.
        """
        with self.lock:
            operators = declarations.read_from(self.library, self._known)
            if not operators:
                return
            self._known += len(operators)
            refused = register(operators)
            self.table.update({operator.name: operator for operator in operators if operator.name not in refused})
            # One callback after the other, since a derivative may call an operator that comes later.
            for callback in self._callbacks:
                for operator in operators:
                    if operator.name in refused:
                        continue
                    try:
                        callback(operator)
                    except Exception as error:
                        refused[operator.name] = error
                        del self.table[operator.name]
        for refusal in refused.values():
            raise refusal


def add(library: ctypes.CDLL, operators: Callable[[], Any]) -> None:
    """Adds the operators that a library exports by this function (core_cuda/core/declaration/library.h) to the core of
    a binding's library."""
    operators.restype = ctypes.c_void_p  # type: ignore[attr-defined]
    library.fusedops_add_operators.restype = ctypes.c_char_p
    refused = library.fusedops_add_operators(ctypes.c_void_p(operators()))
    if refused is not None:
        raise ValueError(refused.decode())
