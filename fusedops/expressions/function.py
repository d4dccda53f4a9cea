"""The function that a user's expression becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusedops import checks
from fusedops.expressions.expression import Expression


class Elementwise:
    """An expression as a function of tensors and numbers: `fusedops.torch.elementwise`, `fusedops.tf.elementwise`.

    Attributes:
        expression: its text.
        inputs: the names of the inputs, in order.
        source: what a GPU runs, in C++: the expression, and its derivative.
        derivative: the gradients of the inputs, as an expression; `dy` is the upstream gradient of the result, and
            `sum_to(v, x)` is v summed to the shape of x.
    """

    # Which of the values are numbers decides which operator is called. None is one most often: that operator is there
    # before the first call, so that no compiler meets the making of it.
    def __init__(self, expression: Expression, operator: Callable[[Any], Callable[..., Any]]) -> None:
        self._expression, self._operator = expression, operator
        self._of_tensors = operator(expression.definition())
        self._with_numbers: dict[tuple[bool, ...], Callable[..., Any]] = {}
        self.__name__ = self.__qualname__ = expression.name or "elementwise"
        self.__doc__ = (
            f"{expression.text}\n\nTakes {', '.join(expression.inputs)}: tensors, or numbers for some of them."
        )

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
        for value in values:
            kind = type(value)
            if kind is float or kind is int or checks.is_number(value):
                return self._with(values)(*values)
        return self._of_tensors(*values)

    def _with(self, values: Sequence[Any]) -> Callable[..., Any]:
        numbers = tuple(map(checks.is_number, values))
        if numbers not in self._with_numbers:
            self._with_numbers[numbers] = self._operator(self._expression.definition(numbers))
        return self._with_numbers[numbers]

    def _wrong_count(self, given: int) -> TypeError:
        names = self._expression.inputs
        expected = f"{len(names)} value{'s' * (len(names) > 1)}, {', '.join(names)}"
        return TypeError(f"fusedops.{self.__name__}: takes {expected}; got {given}")

    def __repr__(self) -> str:
        return f"elementwise({self._expression.text!r}, inputs={list(self.inputs)}, name={self._expression.name!r})"
