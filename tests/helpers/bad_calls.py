"""The calls that must be refused, as the specifications list them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.attention import ReturningLse
from tests.helpers.frameworks import Backend
from tests.helpers.specification import Bad, Like, Specification
from tests.specifications import SPECIFICATIONS

CASES = [pytest.param(spec, bad, id=f"{spec.name}-{bad}") for spec in SPECIFICATIONS for bad in spec.bad]


def arguments(backend: Backend, bad: Bad) -> dict:
    return {name: backend.like(value) for name, value in bad.inputs.items()}


def as_function(backend: Backend, operator: Specification, bad: Bad) -> tuple[Callable[..., Any], list[Any]]:
    """The bad call as a function of its tensors, and the tensors."""
    inputs = arguments(backend, bad)
    names = [name for name, value in bad.inputs.items() if isinstance(value, Like)]

    def function(*tensors: Any) -> Any:
        given = {**inputs, **dict(zip(names, tensors, strict=True))}
        return backend.call(operator.name, given, bad.options)

    return function, [inputs[name] for name in names]


def graph_message(operator: Specification, bad: Bad) -> str:
    """A pattern of the sentence as a kernel or the framework says it, which know a function by the name of the operator
    that it calls, unless that declares the function's."""
    names = operator.function if isinstance(operator, ReturningLse) else f"{operator.function}|{operator.operator}"
    sentence = re.escape(bad.sentence).replace("'", r"\\*'")  # PyTorch may quote it, once or twice
    return sentence.replace(operator.function, f"({names})", 1)


def unknown_size_message(operator: Specification, bad: Bad) -> str:
    """The pattern for a graph, in which each size in [...] may be a question mark."""

    def sizes(shape: re.Match[str]) -> str:
        return re.sub(r"\d+", r"(\\d+|\\?)", shape[0])

    return re.sub(r"\\\[[\w,\\ ]+\\\]", sizes, graph_message(operator, bad))
