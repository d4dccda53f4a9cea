"""Python functions of the operators, generated from their declarations.

On small tensors Python's overhead dominates a call, and packing arguments to check them in a loop costs more than the
checks. So each operator gets a specialized function, as if written by hand:

    def rms_norm(x, weight=None, *, eps=1e-06, weight_offset=0.0):
        if isinstance(x, Tensor) and ... and type(eps) is float and type(weight_offset) is float:
            if eps == 1e-06 and ...:
                return operator(x, weight)
            return operator(x, weight, eps, weight_offset)
        return checked(x, weight, eps=eps, weight_offset=weight_offset)

`checked` handles all other arguments: it converts or refuses them. Attributes are left out if all have their defaults,
because the dispatcher takes 0.1 to 0.3 microseconds to convert one, and less to fill in a default.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from fusedops import checks
from fusedops.declarations import Attribute, Input, Operator
from fusedops.torch import internals
from fusedops.torch.autocast import autocast, takes

# Builtins and local names of the generated code.
_TYPES = ("bool", "float", "int", "list", "str", "tuple")
_RESERVED = (*_TYPES, "TypeError", "RuntimeError", "error", "isinstance", "map", "set", "type")


def _input_test(x: Input) -> str:
    if x.kind == "scalar":
        return f"(type({x.name}) is float or isinstance({x.name}, Tensor))"
    if x.kind == "list":
        return f"type({x.name}) is list"  # the dispatcher checks the items
    test = f"isinstance({x.name}, Tensor)"
    return f"({x.name} is None or {test})" if x.kind == "optional" else test


def _dtype(x: Input) -> str:
    """An expression for the dtype of an input that has passed its test; None if there is no tensor."""
    absent = {"scalar": f"type({x.name}) is float", "optional": f"{x.name} is None"}.get(x.kind)
    return f"None if {absent} else {x.name}.dtype" if absent else f"{x.name}.dtype"


def _default_test(attribute: Attribute) -> str:
    name, default = attribute.name, attribute.default
    if attribute.type == "floats":
        return "False" if 0.0 in default else f"tuple({name}) == {tuple(default)!r}"  # -0.0, see below
    test = f"{name} == {default!r}"
    if attribute.type == "float" and default == 0:  # -0.0 == 0.0, but x + -0.0 can differ from x + 0.0
        test += f" and copysign(1.0, {name}) == 1.0"
    return test


def _source(operator: Operator) -> str:
    names = [x.name for x in operator.inputs]
    attributes = [x.name for x in operator.attributes]
    numbers = [x.name for x in operator.inputs if x.kind == "scalar"]
    given = max(i for i, x in enumerate(operator.inputs) if x.kind != "optional")
    parameters = [f"{x}=None" if i > given else x for i, x in enumerate(names)]
    parameters += ["*"] * bool(attributes) + [f"{x.name}={x.default!r}" for x in operator.attributes]
    tests = [
        "not is_compiling()",
        *map(_input_test, operator.inputs),
        *map(checks.plain_attribute, operator.attributes),
    ]
    if operator.autocast:
        tests.append("not is_any_autocast_enabled()")
    elif autocast(operator) is not None:
        dtypes = "".join(f"{_dtype(x)}, " for x in operator.inputs)
        tests.append(f"(not is_any_autocast_enabled() or takes({operator.name!r}, ({dtypes})))")
    arguments = [f"None if type({x}) is float else {x}" if x in numbers else x for x in names]
    arguments += [f"{x} if type({x}) is float else 0.0" for x in numbers]
    call = f"return operator({', '.join(arguments + attributes)})"
    if attributes:
        defaults = " and ".join(map(_default_test, operator.attributes))
        call = f"if {defaults}:\n                return operator({', '.join(arguments)})\n            {call}"
    rest = [*names, *(f"{x}={x}" for x in attributes)]
    return f"""
def {operator.name}({", ".join(parameters)}):
    if {" and ".join(tests)}:
        try:
            {call}
        except (TypeError, RuntimeError) as error:
            explain(({", ".join(names)},), error)
            raise
    return checked({", ".join(rest)})
"""


def _with_checked_names(declaration: Operator, checked: Callable[..., Any]) -> Callable[..., Any]:
    declared = {x.name for x in declaration.attributes}

    @functools.wraps(checked)
    def function(*inputs: Any, **attributes: Any) -> Any:
        for name in attributes.keys() - declared:
            raise TypeError(checks.unexpected_keyword(declaration.name, name))
        return checked(*inputs, **attributes)

    return function


def spelled_out(
    declaration: Operator,
    operator: Callable[..., Any],
    checked: Callable[..., Any],
    explain: Callable[[tuple[Any, ...], Exception], None],
) -> Callable[..., Any]:
    """A function that calls `operator` for plain arguments and `checked` for all others.

    If `operator` raises an error, `explain` may raise a better one. If an argument's name is reserved in the generated
    code, the function is `checked` alone, which then refuses undeclared attributes.
    """
    namespace: dict[str, Any] = {
        "Tensor": torch.Tensor,
        "copysign": math.copysign,
        "is_compiling": torch.compiler.is_compiling,
        "is_any_autocast_enabled": internals.is_any_autocast_enabled,
        "takes": takes,
        "operator": operator,
        "checked": checked,
        "explain": explain,
    }
    names = {declaration.name, *(x.name for x in declaration.inputs), *(x.name for x in declaration.attributes)}
    if not names.isdisjoint((*namespace, *_RESERVED)):
        return _with_checked_names(declaration, checked)
    exec(compile(_source(declaration), f"<fusedops.torch: {declaration.name}>", "exec"), namespace)
    function: Callable[..., Any] = namespace[declaration.name]
    function.__module__ = __name__
    return function
