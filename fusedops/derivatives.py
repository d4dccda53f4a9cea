"""First derivatives as the table of operators declares them: `Step` in core_cuda/core/declaration/operator.h.

A derivative is a formula like those of fusedops/gradients, so that autograd in Python treats both alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from fusedops.declarations import Operator, Passed, Step
from fusedops.gradients import GRADIENTS, REFUSED, Gradient


class FormulaNames:
    """The `f` of formulas: every operator, and the framework's functions that fusedops/gradients/__init__.py lists.

    An operator that a process adds may have the name of such a function. It hides the function from the formulas of
    added operators only.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]], built_in: Container[str]) -> None:
        self._built_in = built_in
        self._of_built_in, self._of_added = SimpleNamespace(**functions), SimpleNamespace(**functions)

    def add(self, name: str, function: Callable[..., Any]) -> None:
        setattr(self._of_added, name, function)
        if name in self._built_in:
            setattr(self._of_built_in, name, function)

    def of(self, operator: Operator) -> SimpleNamespace:
        return self._of_built_in if operator.name in self._built_in else self._of_added


@dataclass(frozen=True)
class TakenStep:
    """A step taken for certain gradients: a call of an operator, or upstream gradients passed on."""

    gradients: tuple[tuple[str, str], ...]  # (input, the output or the upstream gradient that is its gradient)
    op: str | None = None
    inputs: tuple[str | None, ...] = ()
    attributes: tuple[Passed, ...] = ()
    needs: tuple[tuple[str, bool], ...] = ()  # need_dx, ...
    outputs: tuple[str, ...] = ()

    @property
    def reads(self) -> set[str]:
        passed_on = () if self.op else (source for _, source in self.gradients)
        return {name for name in (*self.inputs, *passed_on) if name is not None}


class Derivative:
    """The derivative of an operator of the table."""

    def __init__(self, table: Mapping[str, Operator], operator: Operator) -> None:
        self.table, self.operator = table, operator
        self.names = tuple(x.name for x in operator.inputs)
        self.upstream = tuple(f"d{x.name}" for x in operator.outputs)
        named = {gradient.input for step in operator.derivative for gradient in step.gradients}
        # Optional inputs whose presence decides which steps are taken.
        self.deciding = tuple({step.if_given: None for step in operator.derivative if step.if_given is not None})
        self.refused = {name: REFUSED for name in self.names if name not in named}
        # A dict, since torch's compiled autograd does not trace functools.cache.
        self._found: dict[Any, tuple[TakenStep, ...]] = {}

    def formula(self, f: Any, c: Any, *dy: Any) -> dict[str, Any]:
        """Evaluates the derivative. fusedops/gradients/__init__.py documents `f` and `c`."""
        upstream = dict(zip(self.upstream, dy, strict=True))
        wanted = tuple(filter(c.wanted, self.names))
        flowing = tuple(name for name, value in upstream.items() if value is not None)
        given = tuple(name for name in self.deciding if getattr(c, name) is not None)
        gradients: dict[str, Any] = {**self.refused}
        for step in self.taken(wanted, flowing, given):
            values = upstream
            if step.op is not None:
                inputs = [name and (upstream[name] if name in upstream else getattr(c, name)) for name in step.inputs]
                attributes = {
                    x.attribute: not getattr(c, x.source) if x.negated else getattr(c, x.source)
                    for x in step.attributes
                }
                results = getattr(f, step.op)(*inputs, **attributes, **dict(step.needs))
                values = dict(zip(step.outputs, results if len(step.outputs) > 1 else (results,), strict=True))
            gradients.update({name: values[source] for name, source in step.gradients})
        return gradients

    def reads(self, wanted: Iterable[str]) -> set[str]:
        """The inputs and outputs read for these gradients, for any upstream gradients and optional inputs."""
        names = tuple(wanted)
        cases = itertools.product(_subsets(self.upstream), _subsets(self.deciding))
        possible = [step for flowing, given in cases for step in self.taken(names, flowing, given)]
        return {name for step in possible for name in step.reads}.difference(self.upstream)

    def taken(self, wanted: tuple[str, ...], flowing: tuple[str, ...], given: tuple[str, ...]) -> tuple[TakenStep, ...]:
        """The steps for the gradients of these inputs, given the upstream gradients and deciding inputs at hand."""
        key = wanted, flowing, given
        if key not in self._found:
            self._found[key] = self._taken(wanted, flowing, given)
        return self._found[key]

    def _taken(
        self, wanted: tuple[str, ...], flowing: tuple[str, ...], given: tuple[str, ...]
    ) -> tuple[TakenStep, ...]:
        left, steps = set(wanted), []
        absent = set(self.upstream).difference(flowing)
        for step in self.operator.derivative:
            sources = {gradient.input: gradient.source for gradient in step.gradients if gradient.input in left}
            if not sources or (step.if_wanted is not None and step.if_wanted not in wanted):
                continue
            if step.if_given is not None and step.if_given not in given:
                continue
            if absent.isdisjoint(self._must_have(step)):
                left.difference_update(sources)
                steps.append(self._resolve(step, sources))
        return tuple(steps)

    def _must_have(self, step: Step) -> set[str]:
        """The names that a step needs as tensors."""
        if step.op is None:
            return {gradient.source for gradient in step.gradients}
        inputs = zip(self.table[step.op].inputs, step.inputs, strict=True)
        return {name for declared, name in inputs if declared.kind == "tensor" and name is not None}

    def _resolve(self, step: Step, sources: Mapping[str, str]) -> TakenStep:
        gradients = tuple(sources.items())
        if step.op is None:
            return TakenStep(gradients)
        op, wanted = self.table[step.op], set(sources.values())
        names = [x.name for x in op.attributes]
        own = {x.name: Passed(x.name, x.name, negated=False) for x in self.operator.attributes}
        passed = {**own, **{x.attribute: x for x in step.attributes}}
        outputs = tuple(x.name for x in op.outputs)
        return TakenStep(
            gradients,
            op=step.op,
            inputs=tuple(
                None if declared.only_for is not None and declared.only_for not in wanted else name
                for declared, name in zip(op.inputs, step.inputs, strict=True)
            ),
            attributes=tuple(passed[name] for name in names if name in passed),
            needs=tuple((f"need_{x}", x in wanted) for x in outputs if f"need_{x}" in names),
            outputs=outputs,
        )


def _subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [some for n in range(len(names) + 1) for some in itertools.combinations(names, n)]


def _of_needed(operator: Operator, gradient: Gradient) -> Gradient:
    """The gradient without upstream gradients of outputs that the call did not need: those are empty."""
    needs = tuple(f"need_{x.name}" for x in operator.outputs)
    if not any(x.name in needs for x in operator.attributes):
        return gradient

    def formula(f: Any, c: Any, *dy: Any) -> Any:
        return gradient.formula(f, c, *(x if getattr(c, y, True) else None for x, y in zip(dy, needs, strict=True)))

    return replace(gradient, formula=formula)


def derivative_of(table: Mapping[str, Operator], operator: Operator) -> Gradient:
    """The declared derivative, or the formula of a backward operator. Without either, all gradients are refused."""
    if not operator.derivative:
        formula = GRADIENTS.get(operator.name)
        refused = {x.name: REFUSED for x in operator.inputs}
        return Gradient(lambda f, c, *dy: refused, ()) if formula is None else _of_needed(operator, formula)
    derivative = Derivative(table, operator)
    reads = derivative.reads(derivative.names)
    tensors = (*derivative.names, *(x.name for x in operator.outputs))
    return Gradient(derivative.formula, tuple(name for name in tensors if name in reads), derivative.reads)
