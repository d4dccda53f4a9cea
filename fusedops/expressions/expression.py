"""An expression as its user wrote it, and the rows of the table that it becomes."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from typing import Any

from fusedops.expressions.parse import FUNCTIONS, MOST_INPUTS, Parsed, parse
from fusedops.expressions.program import NUMBER, TENSOR, Definition, Input, define, digest, result_names, row_names
from fusedops.expressions.tokens import fail

_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z][A-Za-z_0-9]{0,63}", re.ASCII)


class Expression:
    """Checked, and free of any framework.

    Raises:
        TypeError: The text or a name is no string.
        ValueError: It is no expression. The sentence names the place, and the next lines show it.
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
        parsed = parse(text, self._declared)
        self.inputs, self.results = parsed.inputs, len(parsed.results)
        self._definitions: dict[tuple[bool, ...], Definition] = {}

    def definition(self, numbers: Sequence[bool] = ()) -> Definition:
        """The row for calls in which `numbers` says of each input whether it is a number; without it, none is."""
        key = tuple(numbers) or (False,) * len(self.inputs)
        if key not in self._definitions:
            if all(key):
                fail(f"one of the inputs must be a tensor; got numbers for {', '.join(self.inputs)}")
            self._definitions[key] = self._define(parse(self.text, self.inputs, key), key)
        return self._definitions[key]

    def _define(self, parsed: Parsed, numbers: tuple[bool, ...]) -> Definition:
        kinds = [NUMBER if number else TENSOR for number in numbers]
        inputs = tuple(map(Input, row_names(parsed.inputs), kinds))
        names = result_names([x.name for x in inputs], parsed.names)
        name = f"{self.name or 'elementwise'}_{digest(inputs, names, parsed.graph, parsed.results)}"
        return define(name, parsed.graph, inputs, parsed.results, names, [None] * len(names))

    @property
    def source(self) -> str:
        """What a GPU runs, in C++: of the expression, and of its derivative."""
        definition = self.definition()
        return f"{definition.source}\n{definition.backward().source}"

    @property
    def derivative(self) -> str:
        """As an expression."""
        return self.definition().backward().text

    def __repr__(self) -> str:
        return f"Expression({self.text!r}, inputs={list(self.inputs)}, name={self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text, self._declared, self.name)


def _checked(inputs: Sequence[str]) -> tuple[str, ...]:
    if isinstance(inputs, str) or not isinstance(inputs, Sequence) or not all(isinstance(x, str) for x in inputs):
        raise TypeError(f"fusedops.elementwise: inputs must be a list of names; got {repr(inputs)[:80]}")
    if not 0 < len(inputs) <= MOST_INPUTS:
        fail(f"inputs must be at least one name and at most {MOST_INPUTS}; got {len(inputs)}")
    for name in inputs:
        if not _WORD.fullmatch(name) or keyword.iskeyword(name) or name in FUNCTIONS:
            expected = "a word of letters, digits and underscores, and no function or word of Python"
            fail(f"the name of an input must be {expected}; got {name[:80]!r}")
        if inputs.count(name) > 1:
            fail(f"the inputs must have different names; got {name!r} twice")
    return tuple(inputs)
