"""Writes a graph in the language of expressions. sum_to(value, x) sums over the dimensions in which x was broadcast."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from fusedops.expressions.graph import COMPARISONS, Node, needed

if TYPE_CHECKING:
    from fusedops.expressions.program import Definition

_COMPARED, _SUM, _PRODUCT, _SIGN, _POWER, _ATOM = range(1, 7)
_OPERATORS = {
    **{op: (symbol, _COMPARED) for op, symbol in COMPARISONS.items()},
    "add": ("+", _SUM),
    "sub": ("-", _SUM),
    "mul": ("*", _PRODUCT),
    "div": ("/", _PRODUCT),
    "pow": ("**", _POWER),
}


def text(definition: Definition) -> str:
    """One line for each value that is used more than once, and for each result."""
    inputs = [input.name for input in definition.inputs]
    taken = {*inputs, *(result.name for result in definition.results)}
    uses = Counter(operand for node in needed(definition.nodes) for operand in node.operands)
    uses.update(definition.nodes)
    written: dict[Node, tuple[str, int]] = {}
    lines = []
    for node in needed(definition.nodes):
        code = _code(node, inputs, [written[operand] for operand in node.operands])
        if uses[node] > 1 and node.operands:
            name = next(name for i in range(len(taken) + 1) if (name := f"t{i}") not in taken)
            taken.add(name)
            lines.append(f"{name} = {code[0]}")
            code = name, _ATOM
        written[node] = code
    values = []
    for node, result in zip(definition.nodes, definition.results, strict=True):
        value = written[node][0]
        values.append(value if result.like is None else f"sum_to({value}, {inputs[result.like]})")
    if len(values) == 1:
        return "\n".join([*lines, *values])
    lines += [f"{result.name} = {value}" for result, value in zip(definition.results, values, strict=True)]
    return "\n".join([*lines, f"return {', '.join(result.name for result in definition.results)}"])


def _code(node: Node, inputs: list[str], operands: list[tuple[str, int]]) -> tuple[str, int]:
    """The text of a node, and how strongly its operator binds."""
    if node.op == "input":
        return inputs[node.place], _ATOM
    if node.op == "constant":
        return _number(node.value)
    if node.op == "neg":
        return f"-{_within(operands[0], _SIGN)}", _SIGN
    if node.op in _OPERATORS:
        operator, strength = _OPERATORS[node.op]
        on_the_left = strength + (strength in (_COMPARED, _POWER))
        return f"{_within(operands[0], on_the_left)} {operator} {_within(operands[1], strength + 1)}", strength
    return f"{node.op.removeprefix('row_')}({', '.join(code for code, _ in operands)})", _ATOM


def _within(operand: tuple[str, int], strength: int) -> str:
    return operand[0] if operand[1] >= strength else f"({operand[0]})"


def _number(value: float) -> tuple[str, int]:
    negative = math.copysign(1, value) < 0
    code = str(int(value)) if value.is_integer() and 0 < abs(value) < 1e6 else repr(value).removesuffix(".0")
    return code, _SIGN if negative else _ATOM
