"""Registers the gradient of every operator with TensorFlow, from the formulas in `fusedops.gradients`."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from fusedops.declarations import Attribute, Operator
from fusedops.gradients import REFUSED, Formula, gradient_of
from fusedops.tf import neutral
from fusedops.tf.operators import DECLARED, OPERATORS, is_constant

_FUNCTIONS = SimpleNamespace(**vars(OPERATORS), **neutral.FUNCTIONS)


class _Context:
    """What a formula may ask of the call that it differentiates: inputs, outputs and attributes by name."""

    def __init__(self, operator: Operator, op: Any) -> None:
        self._operator = operator
        self._op = op
        self._skipped = getattr(op, "skip_input_indices", None) or ()  # a tape knows what it does not watch
        self._positions: dict[str, int | None] = {}  # an optional input may be absent, and then has none
        position = 0
        for input in operator.inputs:
            present = input.kind != "optional" or op.get_attr(f"N_{input.name}") == 1
            self._positions[input.name] = position if present else None
            position += present

    def __getattr__(self, name: str) -> Any:
        if name in self._positions:
            position = self._positions[name]
            return None if position is None else self._op.inputs[position]
        for output, tensor in zip(self._operator.outputs, self._op.outputs, strict=True):
            if output.name == name:
                return tensor
        for attribute in self._operator.attributes:
            if attribute.name == name:
                return _decoded(attribute, self._op.get_attr(name))
        raise AttributeError(f"{self._operator.name} has no input, output or attribute {name}")

    def wanted(self, name: str) -> bool:
        position = self._positions[name]
        if position is None or position in self._skipped:
            return False
        return not (isinstance(self._op, tf.Operation) and is_constant(self._op.inputs[position]))


def _decoded(attribute: Attribute, value: Any) -> Any:
    """An attribute of an OpDef as the Python value that was given for it."""
    if attribute.type in ("bool", "int"):
        return value
    text = value.decode()
    if attribute.type == "float":
        return float(text)
    if attribute.type == "floats":
        return [float(number) for number in text.strip(" []").split(",") if number.strip()]
    return text


def _register(operator: Operator, formula: Formula) -> None:
    name = "".join(part[:1].upper() + part[1:] for part in operator.name.split("_"))

    @tf.RegisterGradient(f"Fusedops{name}")
    def gradient(op: Any, *upstream: Any) -> Sequence[Any]:
        context = _Context(operator, op)
        dense = [tf.convert_to_tensor(dy) if isinstance(dy, tf.IndexedSlices) else dy for dy in upstream]
        values = formula(_FUNCTIONS, context, *dense)
        results = []
        for input, position in context._positions.items():
            if position is not None:
                value = values.get(input) if context.wanted(input) else None
                # A graph asks for the gradient of everything: None says that there is none, as for integers.
                value = None if value is REFUSED else value
                results.append(value() if callable(value) else value)
        return results


for _operator in DECLARED.values():
    _register(_operator, gradient_of(_operator.name).formula)
