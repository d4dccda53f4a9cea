"""PyTorch: torch.vmap over any of an operator's tensors gives the result of a loop over single calls, or its error."""

from __future__ import annotations

import re

import pytest

from tests.helpers.bad_calls import CASES, as_function
from tests.helpers.calls import function_of
from tests.helpers.checks import tuples
from tests.helpers.maps import equal_sizes, is_batched, samples, selections, sentence
from tests.helpers.torch_functions import assert_same, close, total
from tests.helpers.torch_layers import CASES as LAYER_CASES
from tests.helpers.torch_layers import Case, of_shapes, ours, set_random_parameters
from tests.specifications import BUILT_IN, MAPPED_AT_ONCE


def looped(torch, function, dims):
    """`torch.vmap(function, dims)` as a loop over first dimensions."""

    def run(*tensors):
        size = next(len(x) for x, d in zip(tensors, dims, strict=True) if d == 0)
        calls = [function(*(x if d is None else x[i] for x, d in zip(tensors, dims, strict=True))) for i in range(size)]
        return torch.utils._pytree.tree_map(lambda *ys: torch.stack(ys), *calls)

    return run


def outcome(backend, function, tensors):
    """The results, or the error message."""
    try:
        return function(*tensors)
    except backend.errors as error:
        return sentence(error)


def check(backend, got, expected, exact, label):
    if isinstance(expected, str) or isinstance(got, str):
        assert got == expected, label
        return
    try:
        if exact:
            assert_same(backend.torch, got, expected)
        else:
            close(backend.torch, got, expected, equal_nan=True)  # the mean loss of rows that are all ignored
    except AssertionError as error:
        raise AssertionError(f"{label}: {error}") from error


def mapped(backend, spec, chosen, levels=1):
    """A function of all tensors of each sample, the tensors, and vmap's dimensions."""
    for sample in chosen:
        inputs = backend.tensors(sample, "float64")
        function = function_of(backend, spec, sample, inputs, sample.tensors)
        tensors = tuple(inputs[name] for name in sample.tensors)
        for names in selections(sample, levels):
            dims = tuple(0 if name in names else None for name in sample.tensors)
            yield sample, function, tensors, dims, f"{sample} {dict(sample.options)} over {names}"


def test_values_and_errors(torch_backend, spec, random):
    """Every selection of tensors of any rank: if the operator refuses a slice, the map raises the same message."""
    torch = torch_backend.torch
    for _, function, tensors, dims, label in mapped(torch_backend, spec, samples(spec, random)):
        expected = outcome(torch_backend, looped(torch, function, dims), tensors)
        got = outcome(torch_backend, torch.vmap(function, dims), tensors)
        check(torch_backend, got, expected, spec.rows_are_independent, label)


def test_maps_of_maps(torch_backend, spec, random):
    torch = torch_backend.torch
    for _, function, tensors, dims, label in mapped(torch_backend, spec, samples(spec, random), levels=2):
        inner = looped(torch, function, dims)
        expected = outcome(torch_backend, looped(torch, inner, dims), tensors)
        got = outcome(torch_backend, torch.vmap(torch.vmap(function, dims), dims), tensors)
        check(torch_backend, got, expected, spec.rows_are_independent, label)


def test_gradients_within_and_without(torch_backend, spec, random):
    """vmap of grad gives the gradient of each call."""
    torch = torch_backend.torch
    for sample, function, tensors, dims, label in mapped(torch_backend, spec, equal_sizes(spec, random)):
        wanted = tuple(i for i, name in enumerate(sample.tensors) if name in spec.differentiable(sample))
        gradient = torch.func.grad(total(function), wanted)
        expected = outcome(torch_backend, looped(torch, gradient, dims), tensors)
        got = outcome(torch_backend, torch.vmap(gradient, dims), tensors)
        check(torch_backend, got, expected, False, f"{label}, gradients of each call")

        expected = outcome(torch_backend, torch.func.grad(total(looped(torch, function, dims)), wanted), tensors)
        got = outcome(torch_backend, torch.func.grad(total(torch.vmap(function, dims)), wanted), tensors)
        check(torch_backend, got, expected, False, f"{label}, gradients of all calls")


@pytest.mark.parametrize(("operator", "bad"), CASES)
def test_refused_calls(torch_backend, operator, bad):
    """With one more dimension in every tensor, or in one of them, a refused call stays refused."""
    torch = torch_backend.torch
    function, tensors = as_function(torch_backend, operator, bad)
    if not tensors:
        pytest.skip("no tensor to map")
    for chosen in {tuple(range(len(tensors))), *((i,) for i in range(len(tensors)))}:
        stacked = [torch.stack([x] * 3) if i in chosen else x for i, x in enumerate(tensors)]
        dims = tuple(0 if i in chosen else None for i in range(len(tensors)))
        expected = outcome(torch_backend, function, tensors)
        assert isinstance(expected, str)
        assert outcome(torch_backend, torch.vmap(function, dims), stacked) == expected


def calls_of(torch, function, tensors):
    """The names of the fusedops operators that the dispatcher sees."""
    from torch.utils._python_dispatch import TorchDispatchMode

    calls = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "fusedops":
                calls.append(func.name())
            return func(*args, **(kwargs or {}))

    with Recorder():
        function(*tensors)
    return calls


@pytest.mark.parametrize("spec", MAPPED_AT_ONCE, ids=str)
def test_one_call(torch_backend, spec, random):
    """Calls with shared parameters are one call if the operator is batched and its inputs have one rank, otherwise a
    loop."""
    from fusedops.torch.library import TABLE

    torch = torch_backend.torch
    for rank in range(max(1, spec.least_rank), 4):
        sample = spec.sample((4, *range(3, 3 + rank)), random)
        inputs = torch_backend.tensors(sample, "float32")
        names = tuple(name for name in sample.tensors if name not in spec.shared)
        function = function_of(torch_backend, spec, sample, inputs, names)
        calls = calls_of(torch, torch.vmap(function), [inputs[name] for name in names])
        assert len(calls) == (1 if is_batched(TABLE, spec, sample) else 4), calls


@pytest.mark.parametrize(("scaling", "count"), [("row", 1), ("block", 1), ("tensor", 4)])
def test_scaling_options_decide_between_one_call_and_a_loop(torch_backend, fo, scaling, count):
    """Rows and blocks have their own scales; a scale of the whole tensor belongs to one call."""
    torch = torch_backend.torch
    x = torch.randn(4, 3, 6, device=torch_backend.device)

    def function(x):
        return fo.rms_norm_float8(x, scaling=scaling)

    def bits(y, scales):
        return y.view(torch.uint8), scales

    assert len(calls_of(torch, torch.vmap(function), [x])) == count
    loop = (torch.stack(results) for results in zip(*(bits(*function(each)) for each in x), strict=True))
    assert_same(torch, bits(*torch.vmap(function)(x)), tuple(loop))


@pytest.mark.parametrize("spec", BUILT_IN, ids=str)
def test_compiled(torch_backend, spec, random):
    """Values with symbolic sizes; errors also with known sizes. Only the messages differ."""
    from fusedops.torch.library import TABLE

    torch = torch_backend.torch
    sample = spec.sample((3,) * max(1, spec.least_rank), random)
    for _, function, tensors, dims, label in mapped(torch_backend, spec, [sample]):
        expected = outcome(torch_backend, looped(torch, function, dims), tensors)
        for dynamic in (True, False) if isinstance(expected, str) else (True,):
            torch.compiler.reset()
            run = torch.compile(torch.vmap(function, dims), fullgraph=True, backend="aot_eager", dynamic=dynamic)
            if not isinstance(expected, str):
                check(torch_backend, run(*tensors), expected, spec.rows_are_independent, label)
                continue
            # A symbol is a question mark in the sentence, and compiled code speaks of the operator's function.
            operator = f"fusedops.{TABLE[spec.operator].function}: "
            said = operator if dynamic else expected.replace(f"fusedops.{spec.function}: ", operator)
            with pytest.raises(torch_backend.errors, match=re.escape(said)):
                run(*tensors)


LAYERS = (*LAYER_CASES, Case("MultiheadAttention", (8, 2), {"batch_first": True}, of_shapes(*[(4, 6, 8)] * 3)))


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_gradients_of_layers(torch_backend, case, random):
    """Per-sample gradients of a layer's parameters and floating inputs, as for differential privacy."""
    torch = torch_backend.torch
    layer = ours(case).to(torch_backend.device, torch.float64)
    set_random_parameters([layer], random)
    calls = [case.tensors(torch_backend, "float64", random) for _ in range(3)]
    samples = [torch.stack(slices) for slices in zip(*calls, strict=True)]
    floating = [i for i, x in enumerate(samples) if x.is_floating_point()]
    parameters = {name: x.detach() for name, x in layer.named_parameters()}

    def loss(parameters, chosen, *inputs):
        given = tuple(chosen.get(i, x) for i, x in enumerate(inputs))
        outputs = tuples(torch.func.functional_call(layer, parameters, given))
        return sum((y * y).sum() for y in outputs if y is not None)

    def gradients(*inputs):
        return torch.func.grad(loss, (0, 1))(parameters, {i: inputs[i] for i in floating}, *inputs)

    dims = (0,) * len(samples)
    close(torch, torch.vmap(gradients, dims)(*samples), looped(torch, gradients, dims)(*samples))
