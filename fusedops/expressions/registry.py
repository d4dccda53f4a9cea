"""Adds the definitions of expressions to a binding's table of operators, with their second derivatives."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from fusedops.expressions import compiler
from fusedops.expressions.program import Definition
from fusedops.expressions.structs import packed
from fusedops.gradients.registry import GRADIENTS, Gradient, Tensor
from fusedops.operator_table import OperatorTable


class Registry:
    """The operators of expressions in one binding.

    Args:
        library: the binding's library.
        operator_table: extends the binding's table.
        added: gives the framework the operators that were added to the core.
        operators: has every operator as an attribute.
    """

    def __init__(
        self, library: ctypes.CDLL, operator_table: OperatorTable, added: Callable[[], None], operators: Any
    ) -> None:
        self.library, self.operator_table, self.added, self.operators = library, operator_table, added, operators
        library.fusedops_define.restype = ctypes.c_char_p
        self.known: dict[str, str] = {}  # the keys of definitions whose operators are complete, by name
        self.failed: dict[str, Exception] = {}  # the errors of definitions that cannot be added, by key
        self.has_compiler = False

    def operator(self, definition: Definition) -> Callable[..., Any]:
        """The function of a definition's operator, which is added on first use."""
        if self.known.get(definition.name) != definition.key:
            with self.operator_table.lock:
                self._add(definition)
        function: Callable[..., Any] = getattr(self.operators, definition.name)
        return function

    def _add(self, definition: Definition) -> None:
        if not self.has_compiler:
            compiler.use(self.library)
            self.has_compiler = True
        # The derivative comes first: it is looked up when its operator is added.
        has_backward = definition.backward_name and not definition.needs
        definitions = [definition.backward(), definition] if has_backward else [definition]
        new = [each for each in definitions if not self._is_known(each)]
        try:
            for each in new:
                self._define(each)
            self.added()
        except Exception as error:
            self.failed.update({each.key: error for each in new})
            raise
        # Last, since other threads may call them from now on.
        self.known.update({each.name: each.key for each in new})

    def _is_known(self, definition: Definition) -> bool:
        name, key = definition.name, definition.key
        if key in self.failed:
            raise self.failed[key]
        if self.known.get(name, key) != key:
            raise RuntimeError(f"fusedops: {name} must name one expression; got another with the same digits")
        return name in self.known

    def _define(self, definition: Definition) -> None:
        # The formula comes first: it is looked up when the operator is added.
        if definition.needs:
            GRADIENTS[definition.name] = second_derivative(definition)
        refused = self.library.fusedops_define(ctypes.byref(packed(definition)))
        if refused is not None:
            GRADIENTS.pop(definition.name, None)
            raise RuntimeError(refused.decode())


def second_derivative(backward: Definition) -> Gradient:
    """The gradient of a derivative: an operator of its own, which is added on first use."""
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
        results = f._operator(derivative)(*inputs, *flowing, **needs)
        if len(names) == 1:
            results = (results,)
        return {name: y for name, y in zip(names, results, strict=True) if c.wanted(name)}

    return Gradient(formula, names)
