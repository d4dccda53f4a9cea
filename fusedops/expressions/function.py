"""The function that an expression becomes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from fusedops import checks
from fusedops.expressions.expression import Expression
from fusedops.expressions.registry import Registry

TensorLike = TypeVar("TensorLike")
Tensor = TypeVar("Tensor")


class Elementwise(Generic[TensorLike, Tensor]):
    """An expression as a function of tensors and numbers, which `elementwise` makes.

    Attributes:
        expression: its text.
        inputs: the names of the inputs, in order.
        source: what a GPU runs, in C++: the expression, and its derivative.
        derivative: the gradients of the inputs, as an expression. `dy` is the upstream gradient of the result y, and
            `sum_to(v, x)` is v summed to the shape of x.
    """

    # Set by each framework.
    registry: ClassVar[Registry]
    tensors: ClassVar[frozenset[type]]  # the most common tensor types

    # Adds all operators that a graph may call: files that contain them can be loaded from now on, and compilers never
    # trace their addition.
    def __init__(self, expression: str, inputs: Sequence[str] | None = None, name: str | None = None) -> None:
        self.given = expression, inputs, name
        self._expression = Expression(expression, inputs, name)
        self.expression, self.inputs = expression, self._expression.inputs
        self._of_tensors, *_ = map(self.registry.operator, self._expression.all_recorded())
        self.__name__ = self.__qualname__ = self._expression.name or "elementwise"
        parameter = inspect.Parameter
        self.__signature__ = inspect.Signature([parameter(x, parameter.POSITIONAL_OR_KEYWORD) for x in self.inputs])
        names = ", ".join(self.inputs)
        self.__doc__ = f"{self.expression}\n\nTakes tensors, or numbers for some of them: {names}."

    def _with_numbers(self, values: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The operator for values some of which are numbers, and its arguments."""
        raise NotImplementedError

    @property
    def source(self) -> str:
        return self._expression.source

    @property
    def derivative(self) -> str:
        return self._expression.derivative

    # Several results are a tuple. Type checkers do not know their number, which follows from the text: they accept any
    # use of the result, and editors complete the members of a tensor.
    def __call__(self, /, *values: TensorLike | float, **named: TensorLike | float) -> Tensor | Any:
        if named:
            values = self._positional(values, named)
        if len(values) != len(self._expression.inputs):
            raise self._wrong_count(len(values))
        operator = self._of_tensors
        for value in values:
            if type(value) not in self.tensors and checks.is_number(value):
                operator, values = self._with_numbers(values)
                break
        try:
            return operator(*values)
        except Exception as error:
            renamed = checks.of_function(error, operator.__name__, self.__name__, **self._expression.renamed)
            if renamed is None:
                raise
        raise renamed

    def _positional(self, values: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """All values by position, bound as Python binds a call's arguments."""
        for name in named:
            if name not in self.inputs:
                raise TypeError(checks.unexpected_keyword(self.__name__, name))
            if name in self.inputs[: len(values)]:
                raise TypeError(f"{self.__name__}() got multiple values for argument '{name}'")
        missing = [name for name in self.inputs[len(values) :] if name not in named]
        if missing:
            raise TypeError(f"{self.__name__}() missing required arguments: {', '.join(map(repr, missing))}")
        return (*values, *(named[name] for name in self.inputs[len(values) :]))

    def _double(self, place: int, value: Any) -> float:
        """The number given for an input, as a double."""
        found = checks.double(value)
        if found is None:
            got = type(value).__name__
            raise TypeError(f"fusedops.{self.__name__}: {self.inputs[place]} must be a tensor or a number; got {got}")
        return found

    def _wrong_count(self, given: int) -> TypeError:
        expected = f"{len(self.inputs)} argument{'s' * (len(self.inputs) > 1)}, {', '.join(self.inputs)}"
        return TypeError(f"fusedops.{self.__name__}: must have {expected}; got {given}")

    def __repr__(self) -> str:
        expression, inputs, name = self.given
        return f"elementwise({expression!r}, inputs={inputs!r}, name={name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.given
