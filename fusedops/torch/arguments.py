"""Converts the arguments of a call to those of the operator's schema, and checks their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusedops import checks
from fusedops.torch import internals
from fusedops.torch.library import Signature

Arguments = tuple[Any, ...]  # in the order of the schema

_PLAIN = {"float": float, "int": int, "bool": bool, "str": str}


def argument_parser(signature: Signature) -> Callable[[Arguments, dict[str, Any]], tuple[Arguments, Arguments]]:
    """A function that maps a call's inputs and attributes to (inputs, rest), in the order of the schema."""
    declaration = signature.declaration
    kinds = [(i, declared, declared.kind) for i, declared in enumerate(declaration.inputs)]
    count, like = len(kinds), declaration.leading
    attributes = [(a, a.name, a.default, _PLAIN.get(a.type), a.choices) for a in declaration.attributes]

    def parse(inputs: Arguments, keywords: dict[str, Any]) -> tuple[Arguments, Arguments]:
        if len(inputs) < count:
            inputs += (None,) * (count - len(inputs))
        rest: list[Any] = []
        for i, declared, kind in kinds:
            x = inputs[i]
            if kind == "list":
                if not isinstance(x, (list, tuple)) or not all(isinstance(item, torch.Tensor) for item in x):
                    raise checks.not_a_tensor(declaration, declared, _first_invalid(x))
            elif isinstance(x, torch.Tensor):
                if kind == "scalar":
                    rest.append(0.0)
            elif kind == "scalar":
                number, x = _number(checks.number(declaration, declared, x), _first(inputs[like]))
                rest.append(number)
                inputs = (*inputs[:i], x, *inputs[i + 1 :])
            elif kind == "tensor" or x is not None:
                raise checks.not_a_tensor(declaration, declared, x, _advice(x))
        for attribute, name, default, plain, choices in attributes:
            value = keywords.get(name, default)
            if plain is None:
                if type(value) not in (tuple, list) or any(type(number) is not float for number in value):
                    checks.check_attribute(declaration, attribute, value)
                value = [float(number) for number in value]
            elif (
                type(value) is not plain
                or (choices and value not in choices)
                or (plain is int and not checks.is_integer(value))
            ):
                checks.check_attribute(declaration, attribute, value)
                value = str.__str__(value) if plain is str else plain(value)  # the value of an enum member
            rest.append(value)
        return inputs, tuple(rest)

    return parse


def _first(x: Any) -> Any:
    return x[0] if isinstance(x, (list, tuple)) and x else x


def _first_invalid(x: Any) -> Any:
    """The first item that is no tensor, or x itself if it is not a list."""
    items = x if isinstance(x, (list, tuple)) else [x]
    return next(item for item in items if items is not x or not isinstance(item, torch.Tensor))


def _advice(x: Any) -> str:
    return (
        "torch.fx records calls as fusedops.torch.<function>, or torch.fx.wrap them" if internals.is_symbol(x) else ""
    )


def _number(value: float, like: Any) -> tuple[float, torch.Tensor | None]:
    """(number, None), or (0.0, tensor) under torch.compile, which would compile again for every new number."""
    if not (torch.compiler.is_compiling() and isinstance(like, torch.Tensor)):
        return value, None
    # A product, since the compiler treats the argument of scalar_tensor() as a constant.
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return 0.0, value * torch.ones((), dtype=dtype, device=like.device)
