"""Checks of Python types, with the same error sentences in all frameworks.

The core checks shapes and dtypes. It never sees values that are not tensors, or attributes that have no text form.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

from fusedops.declarations import Attribute, Input, Operator

_INT64_LIMIT = 2**63


def is_number(value: Any) -> bool:
    """True if a scalar input or an attribute accepts the value as a number. A bool is not a number."""
    kind = type(value)
    return kind is float or kind is int or (isinstance(value, numbers.Real) and not isinstance(value, bool))


def is_integer(value: Any) -> bool:
    """True if an attribute accepts the value as a 64-bit integer. A bool is not an integer."""
    kind = type(value)
    integral = kind is int or (isinstance(value, numbers.Integral) and kind is not bool)
    return integral and -_INT64_LIMIT <= value < _INT64_LIMIT


_EXPECTED = {"scalar": "a number or a tensor of one element", "list": "a list of tensors"}


def not_a_tensor(operator: Operator, input: Input, value: Any, advice: str = "") -> TypeError:
    """The error for an input that is neither a tensor nor convertible to one."""
    expected = _EXPECTED.get(input.kind, "a tensor")
    got = type(value).__name__ + (f": {advice}" if advice else "")
    return TypeError(f"fusedops.{operator.function}: {input.name} must be {expected}; got {got}")


def named(input: Input, item: int) -> str:
    """The name of a tensor of an input in errors."""
    return f"{input.name}[{item}]" if input.kind == "list" else input.name


def other_device(operator: Operator, name: str, expected: Any, got: Any) -> RuntimeError:
    """The error for a tensor on another device than the leading one, in the words of PyTorch's binding."""
    where = f"on {operator.inputs[operator.leading].name}'s device, {expected}"
    return RuntimeError(f"fusedops.{operator.function}: {name} must be {where}; got {got}")


def number(operator: Operator, input: Input, value: Any) -> float:
    """The double that a scalar input takes instead of a tensor."""
    found = double(value)
    if found is None:
        raise not_a_tensor(operator, input, value)
    return found


def plain_attribute(attribute: Attribute) -> str:
    """Python text: true if the variable named like the attribute has exactly its type, and an allowed value."""
    name, kind = attribute.name, attribute.type
    if kind == "floats":
        return f"(type({name}) is tuple or type({name}) is list) and set(map(type, {name})) <= {{float}}"
    if kind == "int":
        return f"type({name}) is int and {-_INT64_LIMIT} <= {name} < {_INT64_LIMIT}"
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


def not_finite_or_negative(name: str, value: float) -> str | None:
    """The core's sentence, without the function, on an option that is negative or not finite; None for any other."""
    return None if 0 <= value < math.inf else f"{name} must be a finite number, at least 0; got {value:g}"


def flag(function: str, name: str, value: Any) -> bool:
    """An option of a public function that is a bool, and no attribute of an operator."""
    if value is not True and value is not False:
        raise TypeError(f"fusedops.{function}: {name} must be {_ALLOWED['bool'][0]}; got {repr(value)[:80]}")
    return value


def check_attribute(operator: Operator, attribute: Attribute, value: Any) -> None:
    """Raises TypeError for another type, and ValueError, in the core's words, for a string not in the choices."""
    expected, allowed = _ALLOWED[attribute.type]
    if not allowed(value):
        raise TypeError(f"fusedops.{operator.function}: {attribute.name} must be {expected}; got {repr(value)[:80]}")
    if attribute.choices and value not in attribute.choices:
        choices = ", ".join(attribute.choices)
        raise ValueError(f"fusedops.{operator.function}: {attribute.name} must be one of {choices}; got '{value}'")


def unexpected_keyword(function: str, name: str) -> str:
    """Python's own sentence for an argument that a function does not have."""
    return f"{function}() got an unexpected keyword argument '{name}'"


def pair_of_integers(function: str, name: str, value: Any) -> tuple[int, int]:
    """An argument that is neither a tensor nor None, and so must be a pair of 64-bit integers."""
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not all(map(is_integer, value)):
        expected = "an int64 tensor of shape [2], a pair of integers or None"
        raise TypeError(f"fusedops.{function}: {name} must be {expected}; got {repr(value)[:80]}")
    return int(value[0]), int(value[1])


def one_for_all(function: str, name: str, value: Any) -> int | None:
    """An argument with one integer for each sequence: an integer given for all; None for a tensor and for None."""
    if value is None:
        return None
    if is_integer(value):
        return int(value)
    if hasattr(value, "dtype"):  # a tensor, or convertible to one
        return None
    expected = "an int32 or int64 tensor, an integer or None"
    raise TypeError(f"fusedops.{function}: {name} must be {expected}; got {repr(value)[:80]}")


def renamed(error: Any, operator: str, function: str, /, **arguments: str) -> Any:
    """The error of an operator under the name of the public function that called it; other errors unchanged.

    `arguments` maps the operator's argument names to the function's.
    """
    return of_function(error, operator, function, **arguments) or error


def of_function(error: Any, operator: str, function: str, /, **arguments: str) -> Any:
    """As `renamed`, but None for other errors: torch's compiler, which traces this, cannot compare two errors."""
    plain = type(error) in (RuntimeError, TypeError, ValueError)
    message = str(error) if plain else getattr(error, "message", "")
    sentence = message.replace(f"fusedops.{operator}: ", f"fusedops.{function}: ", 1)
    if sentence == message:
        return None
    for own, name in arguments.items():
        sentence = sentence.replace(f"fusedops.{function}: {own} ", f"fusedops.{function}: {name} ", 1)
    if plain:
        return type(error)(sentence)
    if hasattr(error, "node_def"):  # an error of TensorFlow
        return type(error)(error.node_def, error.op, sentence)
    return None


def double(value: Any) -> float | None:
    """The number as a double; None for a value that is not a number, and for an integer beyond all doubles."""
    if not is_number(value):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _is_double(value: Any) -> bool:
    return double(value) is not None


def _are_numbers(value: Any) -> bool:
    if isinstance(value, (str, bytes, bytearray)):
        return False
    is_vector = hasattr(value, "__array_interface__") and getattr(value, "ndim", 0) == 1
    return (is_vector or isinstance(value, Sequence)) and all(map(_is_double, value))


# For each type: the core's words for it, and a test of a Python value.
_ALLOWED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "float": ("a number", _is_double),
    "int": ("an integer", is_integer),
    "bool": ("a bool", lambda value: isinstance(value, bool)),
    "str": ("a string", lambda value: isinstance(value, str)),
    "floats": ("a list of numbers", _are_numbers),
}
