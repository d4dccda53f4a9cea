"""The function that a user's expression becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from fusedops import checks
from fusedops.expressions.expression import Expression
from fusedops.expressions.rows import Rows


class Elementwise:
    """An expression as a function of tensors and numbers, which `elementwise` makes.

    Attributes:
        expression: its text.
        inputs: the names of the inputs, in order.
        source: what a GPU runs, in C++: the expression, and its derivative.
        derivative: the gradients of the inputs, as an expression. `dy` is the upstream gradient of the result y, and
            `sum_to(v, x)` is v summed to the shape of x.
    """

    # The framework's.
    rows: ClassVar[Rows]
    tensors: ClassVar[frozenset[type]]  # the most common ones

    # Which of the values are numbers decides which operator is called. Most often none is: that operator is there
    # before the first call, so that no compiler meets the making of it.
    def __init__(self, expression: str, inputs: Sequence[str] | None = None, name: str | None = None) -> None:
        self.given = expression, inputs, name
        self._expression = Expression(expression, inputs, name)
        self._of_tensors = self.rows.operator(self._expression.definition())
        self._row = self._naming()
        self.__name__ = self.__qualname__ = self._expression.name or "elementwise"
        names = ", ".join(self.inputs)
        self.__doc__ = f"{self.expression}\n\nTakes tensors, or numbers for some of them: {names}."

    def _naming(self) -> Callable[[tuple[bool, ...]], str]:
        """A function that names the operator for calls with numbers in these places, and adds it if it is not there."""
        return lambda numbers: self.rows.added_name(self._expression.definition(numbers))

    @property
    def expression(self) -> str:
        return self._expression.text

    @property
    def inputs(self) -> tuple[str, ...]:
        return self._expression.inputs

    @property
    def source(self) -> str:
        return self._expression.source

    @property
    def derivative(self) -> str:
        return self._expression.derivative

    def __call__(self, *values: Any) -> Any:
        if len(values) != len(self._expression.inputs):
            raise self._wrong_count(len(values))
        operator = self._of_tensors
        for value in values:
            if type(value) not in self.tensors and checks.is_number(value):
                operator = getattr(self.rows.operators, self._row(tuple(map(checks.is_number, values))))
                break
        try:
            return operator(*values)
        except Exception as error:
            renamed = checks.of_function(error, operator.__name__, self.__name__)
            if renamed is None:
                raise
        raise renamed

    def _wrong_count(self, given: int) -> TypeError:
        expected = f"{len(self.inputs)} argument{'s' * (len(self.inputs) > 1)}, {', '.join(self.inputs)}"
        return TypeError(f"fusedops.{self.__name__}: must have {expected}; got {given}")

    def __repr__(self) -> str:
        expression, inputs, name = self.given
        return f"elementwise({expression!r}, inputs={inputs!r}, name={name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.given
