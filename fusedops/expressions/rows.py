"""How an expression's definitions become rows of the table of a binding, with their second derivatives."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from fusedops.expressions import compiler
from fusedops.expressions.program import Definition
from fusedops.expressions.structs import packed
from fusedops.gradients.registry import GRADIENTS, Gradient, Tensor
from fusedops.growth import Growth


class Rows:
    """Of one binding.

    Args:
        library: the binding's.
        growth: that of the binding's table.
        added: makes operators of the rows that the core has added.
        operators: has every operator as an attribute.
    """

    def __init__(self, library: ctypes.CDLL, growth: Growth, added: Callable[[], None], operators: Any) -> None:
        self.library, self.growth, self.added, self.operators = library, growth, added, operators
        library.fusedops_define.restype = ctypes.c_char_p
        self.known: dict[str, str] = {}  # the keys of the definitions whose operators are complete, by name
        self.failed: dict[str, Exception] = {}  # what was raised for those that cannot be, by key
        self.knows_compiler = False

    def operator(self, definition: Definition) -> Callable[..., Any]:
        """The function of a definition's row, which is added to the table if it is not there."""
        function: Callable[..., Any] = getattr(self.operators, self.added_name(definition))
        return function

    def added_name(self, definition: Definition) -> str:
        """The name of its operator, which is there then."""
        if self.known.get(definition.name) != definition.key:
            with self.growth.lock:
                self._add(definition)
        return definition.name

    def _add(self, definition: Definition) -> None:
        if not self.knows_compiler:
            compiler.use(self.library)
            self.knows_compiler = True
        # A declared derivative comes first: it is looked up when what it is the derivative of becomes an operator.
        has_backward = definition.backward_name and not definition.needs
        rows = [definition.backward(), definition] if has_backward else [definition]
        new = [row for row in rows if not self._is_known(row)]
        try:
            for row in new:
                self._define(row)
            self.added()
        except Exception as error:
            self.failed.update({row.key: error for row in new})
            raise
        # Last, when another thread may call them.
        self.known.update({row.name: row.key for row in new})

    def _is_known(self, row: Definition) -> bool:
        if row.key in self.failed:
            raise self.failed[row.key]
        key = self.known.get(row.name, row.key)
        if key != row.key:
            raise RuntimeError(f"fusedops: {row.name} must name one expression; got another with the same digits")
        return row.name in self.known

    def _define(self, row: Definition) -> None:
        # Its formula comes first: it is looked up when the row becomes an operator.
        if row.needs:
            GRADIENTS[row.name] = second_derivative(row)
        refused = self.library.fusedops_define(ctypes.byref(packed(row)))
        if refused is not None:
            GRADIENTS.pop(row.name, None)
            raise RuntimeError(refused.decode())


def second_derivative(backward: Definition) -> Gradient:
    """Of a row that is itself a derivative: a row of its own, which is added when it is first needed."""
    names = tuple(x.name for x in backward.inputs)

    def formula(f: Any, c: Any, *upstream: Tensor | None) -> Mapping[str, Any]:
        flowing = [
            gradient if getattr(c, f"need_{result.name}") else None
            for result, gradient in zip(backward.results, upstream, strict=True)
        ]
        if all(gradient is None for gradient in flowing):
            return {}
        derivative = backward.backward()
        inputs = [getattr(c, name) for name in names]
        needs = {f"need_{x.name}": c.wanted(name) for x, name in zip(derivative.results, names, strict=True)}
        results = f._row(derivative)(*inputs, *flowing, **needs)
        if len(names) == 1:
            results = (results,)
        return {name: y for name, y in zip(names, results, strict=True) if c.wanted(name)}

    return Gradient(formula, names)
