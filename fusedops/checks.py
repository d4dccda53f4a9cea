"""The checks that need Python's types, in the same words for both frameworks.

Shapes and dtypes are the core's to check: it speaks the same sentence everywhere. What it never sees is what is no
tensor at all, or an attribute that no text could spell.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

from fusedops.declarations import Attribute, Input, Operator

_INTEGERS = 2**63  # those of 64 bits lie below it, and not below its negative


def is_number(value: Any) -> bool:
    """Whether a scalar input or an attribute can take the value as a number. A bool is none."""
    kind = type(value)
    return kind is float or kind is int or (isinstance(value, numbers.Real) and not isinstance(value, bool))


def is_integer(value: Any) -> bool:
    """Whether an attribute can take the value as an integer of 64 bits. A bool is none."""
    kind = type(value)
    integral = kind is int or (isinstance(value, numbers.Integral) and kind is not bool)
    return integral and -_INTEGERS <= value < _INTEGERS


_EXPECTED = {"scalar": "a number or a tensor of one element", "list": "a list of tensors"}


def not_a_tensor(operator: Operator, input: Input, value: Any, advice: str = "") -> TypeError:
    """The error for an input that is neither a tensor nor anything that the framework makes one of."""
    expected = _EXPECTED.get(input.kind, "a tensor")
    got = type(value).__name__ + (f": {advice}" if advice else "")
    return TypeError(f"fusedops.{operator.name}: {input.name} must be {expected}; got {got}")


def named(input: Input, item: int) -> str:
    """A tensor of an input, as errors call it."""
    return f"{input.name}[{item}]" if input.kind == "list" else input.name


def other_device(operator: Operator, name: str, expected: Any, got: Any) -> RuntimeError:
    """The error for a tensor that is not where the first one is; in the words of PyTorch's binding."""
    where = f"on {operator.inputs[operator.leading].name}'s device, {expected}"
    return RuntimeError(f"fusedops.{operator.name}: {name} must be {where}; got {got}")


def number(operator: Operator, input: Input, value: Any) -> float:
    """The double that a scalar input takes instead of a tensor."""
    found = double(value)
    if found is None:
        raise not_a_tensor(operator, input, value)
    return found


def plain_attribute(attribute: Attribute) -> str:
    """The test, in Python, whether the value in a variable of the attribute's name is of its very type and allowed."""
    name, kind = attribute.name, attribute.type
    if kind == "floats":
        return f"(type({name}) is tuple or type({name}) is list) and set(map(type, {name})) <= {{float}}"
    if kind == "int":
        return f"type({name}) is int and {-_INTEGERS} <= {name} < {_INTEGERS}"
    return f"type({name}) is {kind}" + (f" and {name} in {attribute.choices!r}" if attribute.choices else "")


def optional_number(function: str, name: str, value: Any) -> tuple[float, ...]:
    """An option that is a number or None, as the list of numbers that an operator takes for it."""
    if value is None:
        return ()
    if type(value) is not float and not _is_double(value):
        raise TypeError(f"fusedops.{function}: {name} must be a number or None; got {repr(value)[:80]}")
    return (float(value),)


def optional_count(function: str, name: str, value: Any) -> int:
    """An option that is an integer from 1 on or None, as the integer that an operator takes for it: 0 for None."""
    if value is None:
        return 0
    if not is_integer(value):
        raise TypeError(f"fusedops.{function}: {name} must be an integer or None; got {repr(value)[:80]}")
    if value < 1:
        raise ValueError(f"fusedops.{function}: {name} must be at least 1; got {value}")
    return int(value)


def check_attribute(operator: Operator, attribute: Attribute, value: Any) -> None:
    """Raises TypeError for a value of another type than the attribute's; ValueError for a string that is none of its
    choices, in the core's words."""
    expected, allowed = _ALLOWED[attribute.type]
    if not allowed(value):
        raise TypeError(f"fusedops.{operator.name}: {attribute.name} must be {expected}; got {repr(value)[:80]}")
    if attribute.choices and value not in attribute.choices:
        choices = ", ".join(attribute.choices)
        raise ValueError(f"fusedops.{operator.name}: {attribute.name} must be one of {choices}; got '{value}'")


def unexpected_keyword(function: str, name: str) -> str:
    """Python's own sentence for an argument that a function does not have."""
    return f"{function}() got an unexpected keyword argument '{name}'"


def pair_of_integers(function: str, name: str, value: Any) -> tuple[int, int]:
    """An argument that is neither a tensor nor None, and so must be a pair of 64-bit integers."""
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not all(map(is_integer, value)):
        expected = "an int64 tensor of shape [2], a pair of integers or None"
        raise TypeError(f"fusedops.{function}: {name} must be {expected}; got {repr(value)[:80]}")
    return int(value[0]), int(value[1])


def renamed(error: Any, operator: str, function: str, /, **arguments: str) -> Any:
    """The error of an operator as one of the public function that is made of it and was called. Somebody else's stays
    as it is. `arguments`: the names that the function has for some of the operator's."""
    return of_function(error, operator, function, **arguments) or error


def of_function(error: Any, operator: str, function: str, /, **arguments: str) -> Any:
    """The same, but None of somebody else's error: torch's compiler, which traces this, cannot compare two errors."""
    plain = type(error) in (RuntimeError, TypeError, ValueError)
    said = str(error) if plain else getattr(error, "message", "")
    sentence = said.replace(f"fusedops.{operator}: ", f"fusedops.{function}: ", 1)
    if sentence == said:
        return None
    for own, name in arguments.items():
        sentence = sentence.replace(f"fusedops.{function}: {own} ", f"fusedops.{function}: {name} ", 1)
    if plain:
        return type(error)(sentence)
    if hasattr(error, "node_def"):  # TensorFlow's own
        return type(error)(error.node_def, error.op, sentence)
    return None


def double(value: Any) -> float | None:
    """The number as a double; None for what is no number, and for an integer beyond all doubles."""
    if not is_number(value):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _is_double(value: Any) -> bool:
    return double(value) is not None


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _are_numbers(value: Any) -> bool:
    if isinstance(value, (str, bytes, bytearray)):
        return False
    is_vector = hasattr(value, "__array_interface__") and getattr(value, "ndim", 0) == 1
    return (is_vector or isinstance(value, Sequence)) and all(map(_is_double, value))


# What the core's own sentence calls each type, and whether Python's value is one.
_ALLOWED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "float": ("a number", _is_double),
    "int": ("an integer", is_integer),
    "bool": ("a bool", _is_bool),
    "str": ("a string", _is_string),
    "floats": ("a list of numbers", _are_numbers),
}
