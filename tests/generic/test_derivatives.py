"""The first derivatives in the operator table: each matches its operators and saves the tensors that it reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from fusedops.declarations import GradientOf, Operator, Passed, Step
from fusedops.gradients.registry import GRADIENTS
from tests.helpers.frameworks import Backend
from tests.specifications import SPECIFICATIONS, is_of_an_expression

# Inputs of integers or booleans.
INTEGER_INPUTS = {"labels", "mask", "lengths", "query_offset", "offsets", "offsets_q", "offsets_k", "seed", "index"}
NONE = (None, None)  # ds and seed of rms_norm_backward


@pytest.fixture
def table(torch_cpu: Backend) -> Mapping[str, Operator]:
    from fusedops.torch.library import TABLE

    return TABLE


def faults(table: Mapping[str, Operator], operator: Operator) -> Iterator[str]:
    """The mismatches of a derivative, as sentences."""
    inputs = {x.name: x for x in operator.inputs}
    outputs = {x.name: x for x in operator.outputs}
    upstream = {f"d{x.name}" for x in operator.outputs if not x.saved}
    for step in operator.derivative:
        for gradient in step.gradients:
            if gradient.input not in inputs:
                yield f"there is no input {gradient.input}"
        if step.if_wanted is not None and step.if_wanted not in {gradient.input for gradient in step.gradients}:
            yield f"{step.if_wanted} has no gradient from the step that asks for it"
        if step.op is None:
            for gradient in step.gradients:
                if gradient.source not in upstream:
                    yield f"{gradient.source} is no upstream gradient"
            continue
        if step.op not in table:
            yield f"there is no operator {step.op}"
            continue
        op = table[step.op]
        if len(step.inputs) != len(op.inputs):
            yield f"{op.name} has {len(op.inputs)} inputs"
        for name, declared in zip(step.inputs, op.inputs, strict=False):
            if name is None and declared.kind != "optional":
                yield f"{op.name} must have {declared.name}"
            if name is not None and name not in {*inputs, *outputs, *upstream}:
                yield f"{name} is no upstream gradient, input or output"
            is_given = name not in inputs or inputs[name].kind != "optional" or name == step.if_given
            if not is_given and declared.kind != "optional":
                yield f"{name} may be absent, and {op.name} must have {declared.name}"
        for gradient in step.gradients:
            if gradient.source not in {x.name for x in op.outputs}:
                yield f"{op.name} has no output {gradient.source}"
        if step.if_given is not None and step.if_given not in step.inputs:
            yield f"{op.name} does not read {step.if_given}"
        own = {x.name: x.type for x in operator.attributes}
        passed = {x.attribute: x.source for x in step.attributes}
        for attribute in op.attributes:
            source = passed.pop(attribute.name, attribute.name)
            if own.get(source, attribute.type) != attribute.type:
                yield f"{attribute.name} is a {attribute.type} of {op.name}"
            wanted = attribute.name.removeprefix("need_")
            is_unused = attribute.name == "dropout" and step.inputs[-1] is None  # without a seed
            if source not in own and wanted not in {x.name for x in op.outputs} and not is_unused:
                yield f"{op.name} gets no {attribute.name}"
        for name in passed:
            yield f"{op.name} has no attribute {name}"
        for x in step.attributes:
            if x.negated and own.get(x.source) != "bool":
                yield f"{x.source} is no bool"


def test_every_derivative_fits_its_operators(table):
    for operator in table.values():
        assert not list(faults(table, operator)), operator.name
        names = {x.name for x in operator.outputs}
        assert {x.only_for for x in operator.inputs} <= {None, *names}


def test_every_operator_has_one_derivative(table):
    """Each operator has one derivative, in the table or, for operators that a derivative calls, as a formula."""
    declared = {name for name, operator in table.items() if operator.derivative}
    assert not declared & GRADIENTS.keys()
    formulas = GRADIENTS.keys() & table.keys()
    assert declared | formulas == {name for name, operator in table.items() if operator.differentiable}
    assert all(map(is_of_an_expression, GRADIENTS.keys() - formulas))  # added by tests of another framework
    operators = {spec.operator for spec in SPECIFICATIONS}
    assert operators <= declared
    assert all(map(is_of_an_expression, declared - operators))


def test_every_floating_input_has_a_gradient(table):
    for spec in SPECIFICATIONS:
        operator = table[spec.operator]
        named = {gradient.input for step in operator.derivative for gradient in step.gradients}
        assert named == {x.name for x in operator.inputs} - INTEGER_INPUTS - set(spec.not_differentiable)


@pytest.mark.parametrize(
    "changed, sentence",
    [
        ({"op": "cube"}, "there is no operator cube"),
        ({"inputs": ("dy", "x", "weight", "rstd")}, "rms_norm_backward has 6 inputs"),
        ({"inputs": (None, "x", "weight", "rstd", *NONE)}, "rms_norm_backward must have dy"),
        ({"inputs": ("dz", "x", "weight", "rstd", *NONE)}, "dz is no upstream gradient, input or output"),
        ({"inputs": ("drstd", "x", "weight", "rstd", *NONE)}, "drstd is no upstream gradient, input or output"),
        ({"inputs": ("dy", "weight", "x", "rstd", *NONE)}, "weight may be absent, and rms_norm_backward must have x"),
        ({"gradients": (GradientOf("z", "dx"),)}, "there is no input z"),
        ({"gradients": (GradientOf("x", "dz"),)}, "rms_norm_backward has no output dz"),
        ({"op": None, "gradients": (GradientOf("x", "dx"),)}, "dx is no upstream gradient"),
        ({"if_wanted": "rstd"}, "rstd has no gradient from the step that asks for it"),
        ({"if_given": "bias"}, "rms_norm_backward does not read bias"),
        ({"attributes": (Passed("weight_offset", "eps", negated=True),)}, "eps is no bool"),
        ({"attributes": (Passed("rate", "eps", negated=False),)}, "rms_norm_backward has no attribute rate"),
        ({"attributes": (Passed("need_dx", "eps", negated=False),)}, "need_dx is a bool of rms_norm_backward"),
        ({"op": "bias_act_backward", "inputs": ("dy", "x", "weight")}, "bias_act_backward gets no activation"),
    ],
)
def test_a_wrong_derivative_is_found(table, changed: Mapping[str, Any], sentence: str):
    norm = table["rms_norm"]
    (step,) = norm.derivative
    broken: Step = replace(step, **changed)
    assert sentence in list(faults(table, replace(norm, derivative=(broken,))))
