"""Python functions of the operators, generated from their declarations.

On small tensors Python's overhead dominates a call, and packing arguments to check them in a loop costs more than the
checks. So each operator gets a specialized function, as if written by hand:

    def rms_norm(x, weight=None, *, eps=1e-06, weight_offset=0.0):
        if isinstance(x, Tensor) and ... and type(eps) is float and type(weight_offset) is float:
            try:
                if not (weight_offset == 0.0 ...):
                    return operator(x, weight, eps, weight_offset)
                if not (eps == 1e-06):
                    return operator(x, weight, eps)
                if not (weight is None):
                    return operator(x, weight)
                return operator(x)
            except (TypeError, RuntimeError) as error:
                if not is_any_autocast_enabled():
                    explain((x, weight), error)
                    raise
        if is_compiling() and not is_any_autocast_enabled() and isinstance(x, Tensor) and ... and is_dense(x) and ...:
            return public(in_rows(x), weight, eps, weight_offset)
        return checked(x, weight, eps=eps, weight_offset=weight_offset)

`checked` handles all other arguments: it converts or refuses them. It also promotes dtypes that the operator refuses,
while autocast is on. The last arguments are left out as long as they have their defaults, because the dispatcher takes
0.1 to 0.3 microseconds to convert one, and less to fill in a default.
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
    plain = [*map(_input_test, operator.inputs), *map(checks.plain_attribute, operator.attributes)]
    tests = ["not is_compiling()", *plain]
    if operator.autocast:
        tests.append("not is_any_autocast_enabled()")
    # The arguments in the order of the schema, each with the test for its default, if it has one.
    arguments: list[tuple[str, str | None]] = [
        (f"None if type({x}) is float else {x}" if x in numbers else x, f"{x} is None" if i > given else None)
        for i, x in enumerate(names)
    ]
    arguments += [(f"{x} if type({x}) is float else 0.0", None) for x in numbers]
    arguments += [(x.name, _default_test(x)) for x in operator.attributes]
    calls = []
    while arguments and arguments[-1][1] is not None:
        calls.append(f"if not ({arguments[-1][1]}):\n                return operator({_texts(arguments)})")
        arguments.pop()
    calls.append(f"return operator({_texts(arguments)})")
    rest = [*names, *(f"{x}={x}" for x in attributes)]
    call = "\n            ".join(calls)
    return f"""
def {operator.name}({", ".join(parameters)}):
    if {" and ".join(tests)}:
        try:
            {call}
        except (TypeError, RuntimeError) as error:
            if not is_any_autocast_enabled():
                explain(({", ".join(names)},), error)
                raise
{_compiled(operator, plain)}    return checked({", ".join(rest)})
"""


def _compiled(operator: Operator, plain: list[str]) -> str:
    """The call in compiled code, which guards every object that its Python reads: `checked` reads a hundred.

    The compiler's operator would refuse dtypes only after this function, so `checked` promotes them under autocast.
    """
    inputs, attributes = operator.inputs, operator.attributes
    if any(x.kind not in ("tensor", "optional") for x in inputs):
        return ""
    dense = [f"({x.name} is None or is_dense({x.name}))" for x in inputs]
    arguments = [f"in_rows({x.name})" if x.in_rows and not x.updated else x.name for x in inputs]
    arguments += [f"list({x.name})" if x.type == "floats" else x.name for x in attributes]
    condition = " and ".join(["is_compiling()", "not is_any_autocast_enabled()", *plain, *dense])
    return f"    if {condition}:\n        return public({', '.join(arguments)})\n"


def _is_dense(x: torch.Tensor) -> bool:
    """True for a tensor of torch's own classes that a kernel may support."""
    if type(x) is not torch.Tensor and type(x) is not torch.nn.Parameter:
        return False
    return x.layout is torch.strided and not x.is_quantized and not x.is_nested


def in_rows(x: Any) -> Any:
    """A tensor that kernels read in place, in compiled code.

    The compiler writes the tensor in this order, or copies it with other work, where the binding would copy it in the
    forward and again in the backward.
    """
    if not isinstance(x, torch.Tensor) or x.dim() == 0:
        return x
    # The stride first: a size may be unknown.
    return x.clone(memory_format=torch.contiguous_format) if x.stride(-1) != 1 and x.shape[-1] != 1 else x


def _texts(arguments: list[tuple[str, str | None]]) -> str:
    return ", ".join(text for text, _ in arguments)


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
    public: Callable[..., Any],
    checked: Callable[..., Any],
    explain: Callable[[tuple[Any, ...], Exception], None],
) -> Callable[..., Any]:
    """A function that calls `operator` for plain arguments, or `public` in compiled code, and `checked` for all others.

    If `operator` raises an error, `explain` may raise a better one. If an argument's name is reserved in the generated
    code, the function is `checked` alone, which then refuses undeclared attributes.
    """
    namespace: dict[str, Any] = {
        "Tensor": torch.Tensor,
        "copysign": math.copysign,
        "is_compiling": torch.compiler.is_compiling,
        "is_any_autocast_enabled": internals.is_any_autocast_enabled,
        "is_dense": _is_dense,
        "in_rows": in_rows,
        "operator": operator,
        "public": public,
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
