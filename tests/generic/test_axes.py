"""The axes that operators declare, against their `infer` and kernels: a call in parts, joined, equals the whole
call."""

from __future__ import annotations

import dataclasses
import functools
import re

import numpy as np
import pytest

from fusedops import axes
from fusedops.declarations import Axes
from tests.helpers.axes import assert_close, attributes, divided, others, recorded, run, single, ways
from tests.specifications import SPECIFICATIONS

PARTS = (2, 3)


def check(torch, call):
    """The axes along which the call was divided, each with the index of its declaration."""
    results, updated = run(torch, call)
    tested = set()
    for division in ways(call, results):
        for parts in filter(division.allows, PARTS):
            joined, joined_updates = divided(torch, call, division, parts)
            for got, expected in zip([*joined, *joined_updates], [*results, *updated], strict=True):
                if expected is not None:
                    assert_close(torch, got, expected, f"{call} along {division.axis}")
            tested.add("..." if division.axis.isdigit() else division.axis)
    return {(call.name, place(call), axis) for axis in tested}


def place(call):
    """The index of the declaration that applies to a call."""
    from fusedops.torch.library import SIGNATURES

    operator = SIGNATURES[call.name].declaration
    inputs = [single(x) for x in call.arguments[: len(operator.inputs)]]
    return operator.axes.index(axes.declared(operator, attributes(call), inputs))


@functools.cache
def of_specification(backend, spec):
    return {found for call in recorded(backend, spec, np.random.default_rng(0)) for found in check(backend.torch, call)}


@functools.cache
def of_others(backend):
    return {found for call in others(backend, np.random.default_rng(0)) for found in check(backend.torch, call)}


def test_divided_calls_equal_whole_calls(torch_cpu, spec):
    of_specification(torch_cpu, spec)


def test_divided_calls_of_other_operators_equal_whole_calls(torch_cpu):
    assert of_others(torch_cpu)


def test_every_declared_axis_is_tested(torch_cpu):
    from fusedops.torch.library import BUILT_IN, TABLE

    reached = of_others(torch_cpu).union(*(of_specification(torch_cpu, spec) for spec in SPECIFICATIONS))
    expected = set()
    for name in BUILT_IN:
        for place, one in enumerate(TABLE[name].axes):
            terms = re.sub(r"[\^:|]\w+|;.*", "", one.tensors)
            expected |= {(name, place, axis) for axis in re.findall(r"[a-z]|\.\.\.", terms)}
    assert expected - reached == set()


def test_a_wrong_declaration_is_found(torch_cpu, monkeypatch, random):
    """Columns of a norm are not independent: the statistics of two halves differ."""
    from fusedops.torch import library

    call = next(c for c in recorded(torch_cpu, next(s for s in SPECIFICATIONS if s.name == "rms_norm"), random))
    assert call.name == "rms_norm"
    signature = library.SIGNATURES["rms_norm"]
    wrong = dataclasses.replace(signature.declaration, axes=(Axes("...c, c -> ...c, ...", ""),))
    monkeypatch.setitem(library.SIGNATURES, "rms_norm", dataclasses.replace(signature, declaration=wrong))
    with pytest.raises(AssertionError, match="parts that must be the same"):
        check(torch_cpu.torch, call)


@pytest.mark.parametrize("text", ["...c, c", "...c -> ...c!", "c^ -> c", "...c, c, c -> ...c, ..."])
def test_a_declaration_in_another_notation(torch_cpu, text):
    from fusedops.torch.library import TABLE

    operator = dataclasses.replace(TABLE["rms_norm"], axes=(Axes(text, ""),))
    with pytest.raises(ValueError):
        axes.divisions(operator, {"eps": 1e-6, "weight_offset": 0.0}, [(2, 3), (3,)], [(2, 3), (2,)])
