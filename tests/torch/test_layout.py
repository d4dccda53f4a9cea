"""Any strides and any alignment give the results of contiguous tensors; results are contiguous."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.checks import check_backward, check_forward, tuples
from tests.helpers.numerics import assert_accurate, assert_same_bits
from tests.helpers.rows import BY_ROWS, rows
from tests.helpers.torch_functions import leaves, tensor_function
from tests.helpers.torch_layouts import (
    LAYOUTS,
    compact,
    expanded,
    misaligned,
    negated,
    rows_spaced_by_one,
    spaced_batches,
    spaced_rows,
)
from tests.helpers.updates import UPDATES, leading, raw, wide
from tests.specifications import BUILT_IN


def laid_out(torch, layout, inputs):
    """Offsets keep their layout: some layouts repeat values, which makes offsets invalid."""
    changed = {name for name, x in inputs.items() if isinstance(x, torch.Tensor) and not name.startswith("offsets")}
    return {name: layout(x) if name in changed else x for name, x in inputs.items()}


def of_layout(sample):
    """The properties that interact with strides: the present tensors, their ranks, and the options that select
    dimensions, but not others, such as a scale."""
    ranks = ((name, sample.inputs[name].ndim) for name in sample.tensors)
    places = ((key, value) for key, value in sample.options.items() if key == "seq_dim" or key.startswith("transpose_"))
    return (*ranks, *sorted(places))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layout(torch_backend, spec, dtype, layout, random):
    torch = torch_backend.torch
    others = {of_layout(sample): sample for sample in spec.more_samples(random)}.values()
    for sample in (spec.sample((3, 5, 65), random), spec.sample((40, 72), random), *others):
        inputs = laid_out(torch, layout, torch_backend.tensors(sample, dtype))
        outputs = torch_backend.call(spec.name, inputs, sample.options)
        assert all(output.is_contiguous() for output in outputs)
        if not spec.bits_follow_from_values:
            check_forward(torch_backend, spec, sample, inputs)
        else:  # contiguous results are verified by generic/test_reference.py and generic/test_shapes.py
            expected = torch_backend.call(spec.name, laid_out(torch, compact, inputs), sample.options)
            for got, output in zip(outputs, expected, strict=True):
                assert_same_bits(torch_backend.to_numpy(got), torch_backend.to_numpy(output), str(sample))


@pytest.mark.parametrize("spec", [spec for spec in BY_ROWS if spec.bits_follow_from_values], ids=str)
@pytest.mark.parametrize("layout", [misaligned, rows_spaced_by_one], ids=lambda layout: layout.__name__)
def test_layout_of_long_rows(torch_backend, spec, dtype, layout, random):
    """Rows that a GPU holds in one block, in several, or not at all."""
    torch = torch_backend.torch
    for columns in (12_000, 20_000, 40_000, 200_000):
        sample = rows(spec, 3, columns, random)
        inputs = laid_out(torch, layout, torch_backend.tensors(sample, dtype))
        expected = torch_backend.call(spec.name, laid_out(torch, compact, inputs), sample.options)
        for got, output in zip(torch_backend.call(spec.name, inputs, sample.options), expected, strict=True):
            assert_same_bits(torch_backend.to_numpy(got), torch_backend.to_numpy(output), str(columns))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_layout_backward(torch_backend, spec, layout, random):
    """Layouts of the inputs and of the upstream gradients, which often are expanded or transposed."""
    torch = torch_backend.torch
    sample = spec.sample((3, 5, 65), random)
    inputs = laid_out(torch, layout, torch_backend.tensors(sample, "float32"))
    if not spec.bits_follow_from_values:
        check_backward(torch_backend, spec, sample, inputs)
    outputs = torch_backend.call(spec.name, inputs, sample.options)
    upstream = tuple(map(layout, torch_backend.upstream(outputs)))
    wanted = spec.differentiable(sample)
    _, got = torch_backend.gradients(spec.name, inputs, sample.options, wanted, upstream)
    copies = tuple(map(compact, upstream))
    _, expected = torch_backend.gradients(spec.name, laid_out(torch, compact, inputs), sample.options, wanted, copies)
    for name in wanted:
        if spec.bits_follow_from_values:
            assert_same_bits(torch_backend.to_numpy(got[name]), torch_backend.to_numpy(expected[name]), name)
        else:
            torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-5)


def test_negative_bit_when_compiled(torch_backend, spec, random):
    """The negative bit of inputs and upstream gradients changes no value: results are those of eager code without
    it."""
    torch = torch_backend.torch
    sample = spec.sample((3, 6), random)
    function, tensors = tensor_function(torch_backend, spec, sample, torch_backend.tensors(sample, "float32"))

    def results(function, layout):
        inputs = leaves(spec, sample, tensors)
        outputs = tuples(function(*(layout(x) for x in inputs)))
        upstream = [layout(torch.full_like(y, 0.75)) for y in outputs]
        return (*outputs, *torch.autograd.grad(outputs, [x for x in inputs if x.requires_grad], upstream))

    expected = results(function, lambda x: x)
    torch.testing.assert_close(results(torch_backend.traced(function), negated), expected)


@pytest.mark.parametrize("way", ["eager", "inference", "compiled"])
@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout is not expanded], ids=lambda x: x.__name__)
@pytest.mark.parametrize("update", UPDATES, ids=lambda update: update.name)
def test_layout_of_updates(torch_backend, update, layout, way, random):
    """Every input has the layout."""
    call = next(iter(update.calls("float32", random)))
    exact = update.reference(wide(call.lists, "float32"), call.scalars, call.options)
    with torch_backend.torch.inference_mode(way == "inference"):
        lists = {name: [layout(torch_backend.from_numpy(x)) for x in given] for name, given in call.lists.items()}
        scalars = [None if x is None else torch_backend.from_numpy(np.asarray(x)) for x in call.scalars.values()]
        result = raw(update, torch_backend, way)(*leading(update, lists), *scalars, **call.options)
    found = {**lists, "result": [result]}
    for name, expected in exact.items():
        for got, (value, magnitude, roundings) in zip(found[name], expected, strict=True):
            assert_accurate(torch_backend.to_numpy(got), value, magnitude, roundings, name)


@pytest.mark.parametrize("spaced", [spaced_rows, spaced_batches], ids=lambda layout: layout.__name__)
def test_spaced_rows_take_the_same_path(torch_backend, spec, dtype, spaced, random):
    """Rows spaced by whole vectors are read in place and give the same bits, also in matrix products."""
    for shape in ((40, 72), (3, 24, 64)):
        sample = spec.sample(shape, random)
        inputs = torch_backend.tensors(sample, dtype)
        moved = {**inputs, (first := sample.tensors[0]): spaced(inputs[first])}
        expected = torch_backend.call(spec.name, inputs, sample.options)
        for got, output in zip(torch_backend.call(spec.name, moved, sample.options), expected, strict=True):
            assert_same_bits(torch_backend.to_numpy(got), torch_backend.to_numpy(output), str(sample))


@pytest.mark.parametrize("spec", [spec for spec in BUILT_IN if spec.least_rank > 0], ids=str)
@pytest.mark.parametrize("spaced", [spaced_rows, rows_spaced_by_one], ids=lambda layout: layout.__name__)
def test_spaced_rows_are_not_copied(torch_cpu, spec, spaced, random):
    """Neither in the forward nor in the backward, where the upstream gradient has spaced rows as well."""
    torch = torch_cpu.torch
    sample = spec.sample((3, 40, 72), random)
    inputs = torch_cpu.tensors(sample, "float32")
    large = set(sample.floating) - {*spec.parameters, *spec.contiguous}
    moved = {name: spaced(x) if name in large else x for name, x in inputs.items()}
    upstream = torch_cpu.upstream(torch_cpu.call(spec.name, inputs, sample.options))
    upstream = tuple(spaced(dy) if dy.shape == inputs[sample.tensors[0]].shape else dy for dy in upstream)
    with torch.profiler.profile() as profile:
        torch_cpu.gradients(spec.name, moved, sample.options, spec.differentiable(sample), upstream)
    names = {event.name for event in profile.events()}
    assert any(name.startswith("fusedops::") for name in names)
    assert not names & {"aten::contiguous", "aten::clone", "aten::copy_"}


def test_channels_last(torch_backend, spec, random):
    """The input has another memory format; the result is contiguous."""
    torch = torch_backend.torch
    sample = spec.sample((2, 3, 4, 5), random)
    inputs = torch_backend.tensors(sample, "float32")
    inputs = {
        name: x.to(memory_format=torch.channels_last) if isinstance(x, torch.Tensor) and x.dim() == 4 else x
        for name, x in inputs.items()
    }
    check_forward(torch_backend, spec, sample, inputs)
    check_backward(torch_backend, spec, sample, inputs)
    assert all(output.is_contiguous() for output in torch_backend.call(spec.name, inputs, sample.options))
