"""An expression as its user wrote it, and the operators that it becomes."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from typing import Any

from fusedops.expressions.graph import Graph, copied, needed
from fusedops.expressions.parse import FUNCTIONS, MAX_INPUTS, parse
from fusedops.expressions.program import (
    NUMBER,
    TENSOR,
    Definition,
    Input,
    define,
    digest,
    input_names,
    is_of_rows,
    key,
    result_names,
)
from fusedops.expressions.tokens import fail

_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z][A-Za-z_0-9]{0,63}", re.ASCII)


class Expression:
    """A checked expression, independent of frameworks.

    Raises:
        TypeError: The text or a name is not a string.
        ValueError: The text is not an expression. The message names the place and shows it.
    """

    def __init__(self, text: str, inputs: Sequence[str] | None = None, name: str | None = None) -> None:
        if not isinstance(text, str):
            raise TypeError(f"fusedops.elementwise: expression must be a string; got {type(text).__name__}")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"fusedops.elementwise: name must be a string; got {type(name).__name__}")
        if name is not None and not _NAME.fullmatch(name):
            fail(f"name must be a letter and at most 63 letters, digits and underscores; got {name[:80]!r}")
        self.text, self.name = text, name
        self._declared = None if inputs is None else _checked(inputs)
        self._parsed = parse(text, self._declared)
        self.inputs, self.results = self._parsed.inputs, len(self._parsed.results)
        # Operator input name -> name in the expression, where they differ. Computed here, since torch's compiler does
        # not trace the lock of a cached property.
        names = zip(input_names(self.inputs), self.inputs, strict=True)
        self.renamed = {own: name for own, name in names if own != name}
        self._definitions: dict[tuple[bool, ...], Definition] = {}
        self._recorded: dict[tuple[bool, ...], Definition] = {}

    def definition(self, numbers: Sequence[bool] = ()) -> Definition:
        """The operator for calls whose inputs flagged in `numbers` are numbers; by default none is."""
        given = self._numbers(numbers)
        if not any(given):
            return self.recorded(given)
        if given not in self._definitions:
            kinds = [NUMBER if number else TENSOR for number in given]
            self._definitions[given] = self._define(kinds, self._of_rows(given))
        return self._definitions[given]

    def recorded(self, numbers: Sequence[bool] = ()) -> Definition:
        """The operator for the same calls in a graph, where numbers are tensors of one element."""
        of_rows = self._of_rows(self._numbers(numbers))
        if of_rows not in self._recorded:
            self._recorded[of_rows] = self._define([TENSOR] * len(self.inputs), of_rows)
        return self._recorded[of_rows]

    def all_recorded(self) -> list[Definition]:
        """The operators of all calls in graphs, for any choice of numbers.

        They differ only in the shapes of results, so most expressions have one.
        """
        count = len(self.inputs)
        sets = {(False,) * count}
        for result in self._parsed.results:
            inputs = {node.place for node in needed([result], within_stage=True) if node.op == "input"}
            sets |= {tuple(place in inputs or number for place, number in enumerate(one)) for one in sets}
        return list(dict.fromkeys(self.recorded(numbers) for numbers in sorted(sets) if not all(numbers)))

    def _numbers(self, numbers: Sequence[bool]) -> tuple[bool, ...]:
        given = tuple(numbers) or (False,) * len(self.inputs)
        if all(given):
            fail(f"one of the inputs must be a tensor; got numbers for {', '.join(self.inputs)}")
        return given

    def _of_rows(self, numbers: Sequence[bool]) -> tuple[bool, ...]:
        return tuple(is_of_rows(node, numbers) for node in self._parsed.results)

    def _define(self, kinds: Sequence[int], of_rows: tuple[bool, ...]) -> Definition:
        parsed = self._parsed
        # A result with one element per row depends on these inputs outside its reductions. They are numbers: as uniform
        # inputs they are not summed over the row in derivatives.
        flagged = [node for node, flag in zip(parsed.results, of_rows, strict=True) if flag]
        numbers = {node.place for node in needed(flagged, within_stage=True) if node.op == "input"}
        graph = Graph()
        for node in parsed.graph.inputs:
            graph.input(uniform=node.place in numbers)
        results = copied(graph, parsed.results)
        inputs = tuple(map(Input, input_names(parsed.inputs), kinds))
        names = result_names([x.name for x in inputs], parsed.names)
        name = self.name or "elementwise"
        text = key(name, inputs, names, of_rows, parsed.results)
        return define(f"{name}_{digest(text)}", text, graph, inputs, results, names, of_rows)

    @property
    def source(self) -> str:
        """The C++ code of the expression and of its derivative for GPUs."""
        definition = self.definition()
        return f"{definition.source}\n{definition.backward().source}"

    @property
    def derivative(self) -> str:
        """The derivative, as an expression."""
        return self.definition().backward().text

    def __repr__(self) -> str:
        return f"Expression({self.text!r}, inputs={list(self.inputs)}, name={self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text, self._declared, self.name)


def _checked(inputs: Sequence[str]) -> tuple[str, ...]:
    if isinstance(inputs, str) or not isinstance(inputs, Sequence) or not all(isinstance(x, str) for x in inputs):
        raise TypeError(f"fusedops.elementwise: inputs must be a list of names; got {repr(inputs)[:80]}")
    if not 0 < len(inputs) <= MAX_INPUTS:
        fail(f"inputs must be at least one name and at most {MAX_INPUTS}; got {len(inputs)}")
    for name in inputs:
        if not _WORD.fullmatch(name) or keyword.iskeyword(name) or name in FUNCTIONS:
            expected = "a word of letters, digits and underscores, and no function or word of Python"
            fail(f"the name of an input must be {expected}; got {name[:80]!r}")
        if inputs.count(name) > 1:
            fail(f"the inputs must have different names; got {name!r} twice")
    return tuple(inputs)
