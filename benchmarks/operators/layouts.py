"""The inputs and results of a case, for all frameworks, from the operator's record."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from benchmarks.cases.case import Case
from benchmarks.operators import OPERATORS
from benchmarks.operators.record import Function, Input, Layout


def layouts(case: Case) -> dict[str, Layout]:
    """The layouts of the inputs that are tensors, and of upstream gradients if the case has any."""
    return {x.name: x.layout(case) for x in _tensors(case) if x.layout}


def results(case: Case) -> list[Layout]:
    """The layouts of a call's results: outputs, gradients, or both."""
    operator = OPERATORS[case.operator]
    found = [] if case.variant == "backward" else [layout(case) for layout in operator.outputs.values()]
    if "backward" in case.variant:
        found += [x.layout(case) for x in operator.inputs if x.gradient and x.layout]
    return found


def drawn(case: Case, draw: Callable[[Case, Input, Layout], Any]) -> dict[str, Any]:
    """All arguments of a call, in order, then the upstream gradients."""
    return {x.name: draw(case, x, x.layout(case)) if x.layout else x.values for x in _tensors(case)}


def _tensors(case: Case) -> list[Input]:
    """The inputs, and the upstream gradients. That of a single number is left to the framework."""
    operator = OPERATORS[case.operator]
    found = list(operator.inputs)
    if "backward" in case.variant:
        found += [Input(f"d{name}", layout) for name, layout in operator.outputs.items() if layout(case).shape]
    return found


def dtype_of(case: Case, x: Input) -> str:
    own = x.layout(case).dtype if x.layout else ""
    return own or (case.parameters if case.parameters and x.parameter else case.dtype)


def formula(functions: dict[str, Any], matmul: Callable[[bool, bool], Function], case: Case) -> Function:
    """The operator's formula over a framework's functions. `matmul` makes the product for given transposes."""
    of_operator = OPERATORS[case.operator].formula
    assert of_operator  # only models have none
    return of_operator(SimpleNamespace(**functions, matmul=matmul(*case.transposes)))


def public(package: Any, case: Case) -> Function:
    """The function of a package, such as `fusedops.torch`, with its options."""
    operator = OPERATORS[case.operator]
    if operator.own:
        return expression(package, case)
    function = getattr(package, operator.function or operator.name)
    if operator.options:
        function = partial(function, **operator.options(case))
    if operator.adapted:
        function = operator.adapted(function)
    return _with_keywords(function, [x.name for x in operator.inputs if x.keyword])


def _with_keywords(function: Function, names: list[str]) -> Function:
    """The function, called with the last arguments by these names."""
    if not names:
        return function
    return lambda *given: function(*given[: -len(names)], **dict(zip(names, given[-len(names) :], strict=True)))


def expression(package: Any, case: Case, name: str | None = None) -> Function:
    """The operator as an expression, which is made here."""
    operator = OPERATORS[case.operator]
    function: Function = package.elementwise(operator.expression, inputs=operator.names, name=name)
    return function


def has_both(case: Case) -> bool:
    """True if fusedops has the operator, and an expression computes it, too."""
    operator = OPERATORS[case.operator]
    return bool(operator.expression) and not operator.own
