"""PyTorch: torch.func, autocast, and inputs that stay unchanged."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.helpers.checks import small_samples, tuples
from tests.helpers.torch_functions import close, function_and_leaves, prepared, total
from tests.specifications import BUILT_IN, SPECIFICATIONS

AUTOCAST = [spec for spec in SPECIFICATIONS if spec.autocast]
NO_AUTOCAST = [spec for spec in SPECIFICATIONS if not spec.autocast]
PROMOTED = [spec for spec in NO_AUTOCAST if len(spec.sample((3, 5), np.random.default_rng(0)).floating) > 1]
PAIRS = (("float32", "bfloat16"), ("bfloat16", "float32"), ("bfloat16", "float16"), ("float64", "float32"))


def stacked(torch, calls):
    return torch.utils._pytree.tree_map(lambda *ys: torch.stack(ys), *calls)


def test_grad(torch_backend, spec, random):
    torch = torch_backend.torch
    function, tensors = prepared(torch_backend, spec, random)
    positions = tuple(range(len(tensors)))
    got = torch.func.grad(total(function), positions)(*tensors)
    leaves = tuple(x.clone().requires_grad_() for x in tensors)
    close(torch, got, torch.autograd.grad(total(function)(*leaves), leaves))


def test_vjp(torch_backend, spec, random):
    """Pulled back after the transform has ended, and differentiated again there."""
    torch = torch_backend.torch
    function, tensors = prepared(torch_backend, spec, random)
    leaves = tuple(x.clone().requires_grad_() for x in tensors)
    total_of = total(function)
    output, pull_back = torch.func.vjp(total_of, *leaves)
    got = pull_back(torch.ones_like(output))
    second = torch.autograd.grad(sum((g**2).sum() for g in got), leaves)
    expected = torch.autograd.grad(total_of(*leaves), leaves, create_graph=True)
    close(torch, got, expected)
    close(torch, second, torch.autograd.grad(sum((g**2).sum() for g in expected), leaves))


def test_jacobians(torch_backend, spec, random):
    torch = torch_backend.torch
    function, tensors = prepared(torch_backend, spec, random)
    positions = tuple(range(len(tensors)))
    expected = torch.autograd.functional.jacobian(function, tensors)
    close(torch, torch.func.jacrev(function, positions)(*tensors), expected)
    close(torch, torch.func.jacfwd(function, positions)(*tensors), expected)


def test_hessian(torch_backend, spec, random):
    torch = torch_backend.torch
    function, tensors = prepared(torch_backend, spec, random)
    expected = torch.autograd.functional.hessian(total(function), tensors)
    close(torch, torch.func.hessian(total(function), tuple(range(len(tensors))))(*tensors), expected)


def test_jvp(torch_backend, spec, random):
    torch = torch_backend.torch
    for sample in small_samples(spec, random):
        function, leaves = function_and_leaves(torch_backend, spec, sample)
        tensors = tuple(leaf.detach() for leaf in leaves)
        tangents = tuple(torch.from_numpy(random.standard_normal(x.shape)).to(x) for x in tensors)
        output, tangent = torch.func.jvp(function, tensors, tangents)
        expected = torch.autograd.functional.jvp(function, tensors, tangents)
        close(torch, (output, tangent), expected)


@pytest.mark.parametrize("place", [0, -1])
def test_vmap(torch_backend, spec, place, random):
    """Over all tensors and over each alone, with the mapped dimension in any place: equals a loop over it."""
    torch = torch_backend.torch
    function, tensors = prepared(torch_backend, spec, random)
    chosen = [range(len(tensors)), *((i,) for i in range(len(tensors)))]
    for mapped in chosen:
        batched = [torch.stack([x, 2 * x, x - 1, -x], place) if i in mapped else x for i, x in enumerate(tensors)]
        dims = tuple(place if i in mapped else None for i in range(len(tensors)))

        def loop(f, batched=batched, mapped=mapped):
            calls = [f(*(x.select(place, k) if i in mapped else x for i, x in enumerate(batched))) for k in range(4)]
            return stacked(torch, calls)

        close(torch, torch.vmap(function, dims)(*batched), loop(function))
        gradient = torch.func.grad(total(function), tuple(range(len(tensors))))
        close(torch, torch.vmap(gradient, dims)(*batched), loop(gradient))


def test_vmap_of_nothing(torch_backend, spec, random):
    """Over an empty dimension of all tensors, and of each alone: shapes, dtypes and gradients of no calls."""
    torch = torch_backend.torch
    function, tensors = prepared(torch_backend, spec, random)
    for mapped in [range(len(tensors)), *((i,) for i in range(len(tensors)))]:
        dims = tuple(0 if i in mapped else None for i in range(len(tensors)))
        empty = [x.new_empty((0, *x.shape)) if i in mapped else x for i, x in enumerate(tensors)]
        leaves = [x.detach().clone().requires_grad_() for x in empty]
        got = torch.vmap(function, dims)(*leaves)
        for y, one in zip(tuples(got), tuples(function(*tensors)), strict=True):
            assert (y.shape, y.dtype) == ((0, *one.shape), one.dtype)
        gradients = torch.autograd.grad(sum(y.sum() for y in tuples(got)), leaves, allow_unused=True)
        for x, g in zip(leaves, gradients, strict=True):
            assert g is None or (g.shape == x.shape and not g.any())

        def pulled_back(*tensors):  # torch's own sum() does not run there
            outputs, pull_back = torch.func.vjp(function, *tensors)
            return pull_back(outputs)

        of_calls = torch.vmap(pulled_back, dims)(*empty)
        assert [g.shape for g in of_calls] == [(0, *x.shape) for x in tensors]


def test_vmap_of_vmap(torch_backend, spec, random):
    torch = torch_backend.torch
    function, tensors = prepared(torch_backend, spec, random)
    batched = [torch.stack([torch.stack([x, 2 * x]), torch.stack([x + 1, -x]), torch.stack([x, x])]) for x in tensors]
    got = torch.vmap(torch.vmap(function))(*batched)
    rows = [stacked(torch, [function(*(x[i, j] for x in batched)) for j in range(2)]) for i in range(3)]
    close(torch, got, stacked(torch, rows))


def test_vmap_in_chunks(torch_backend, spec, random):
    torch = torch_backend.torch
    function, tensors = prepared(torch_backend, spec, random)
    batched = [torch.stack([x, 2 * x, x - 1, -x, x + 1]) for x in tensors]
    got = torch.vmap(function, chunk_size=2)(*batched)
    close(torch, got, stacked(torch, [function(*(x[i] for x in batched)) for i in range(5)]))


def test_vmap_over_jvp(torch_backend, spec, random):
    torch = torch_backend.torch
    function, tensors = prepared(torch_backend, spec, random)
    tangents = tuple(torch.stack([torch.ones_like(x), x, -2 * x]) for x in tensors)

    def push_forward(*tangents):
        return torch.func.jvp(function, tensors, tangents)

    calls = [push_forward(*(t[i] for t in tangents)) for i in range(3)]
    close(torch, torch.vmap(push_forward)(*tangents), stacked(torch, calls))


def test_functional_call(torch_backend, spec, random):
    """A module's parameters as an argument of torch.func.grad, and one gradient for each of several inputs."""
    torch = torch_backend.torch
    function, tensors = prepared(torch_backend, spec, random)

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs = torch.nn.ParameterList(tensors)

        def forward(self, factor):
            return total(function)(*(factor * x for x in self.inputs))

    module = Module()
    parameters = {name: x.detach() for name, x in module.named_parameters()}
    factors = torch.tensor([1.0, 0.5, -2.0], dtype=torch.float64, device=torch_backend.device)

    def loss(parameters, factor):
        return torch.func.functional_call(module, parameters, (factor,))

    got = torch.vmap(torch.func.grad(loss), (None, 0))(parameters, factors)
    for i, factor in enumerate(factors):
        expected = torch.autograd.grad(module(factor), tuple(module.parameters()))
        close(torch, tuple(x[i] for x in got.values()), expected)


def test_vmap_of_all_tensors(torch_backend, spec, random):
    """Tensors without a gradient too, such as labels, over calls whose shapes agree."""
    torch = torch_backend.torch
    samples = [spec.sample((2, 3), random) for _ in range(3)]
    tensors = [torch_backend.tensors(sample, "float64") for sample in samples]
    names = samples[0].tensors

    for options in ({**samples[0].options}, {**samples[0].options, **spec.row_options}):

        def function(*given, options=options):
            outputs = torch_backend.call(spec.name, {**tensors[0], **dict(zip(names, given, strict=True))}, options)
            return outputs if len(outputs) > 1 else outputs[0]

        got = torch.vmap(function)(*(torch.stack([inputs[name] for inputs in tensors]) for name in names))
        close(torch, got, stacked(torch, [function(*(inputs[name] for name in names)) for inputs in tensors]))


@pytest.mark.parametrize("spec", NO_AUTOCAST, ids=str)
def test_autocast_leaves_dtypes_alone(torch_backend, spec, random):
    torch = torch_backend.torch
    sample = spec.sample((3, 5), random)
    for dtype in ("float32", "float16", "float64"):
        inputs = torch_backend.tensors(sample, dtype)
        expected = torch_backend.call(spec.name, inputs, sample.options)
        with torch.autocast(torch_backend.device, torch.bfloat16):
            outputs = torch_backend.call(spec.name, inputs, sample.options)
        for got, output in zip(outputs, expected, strict=True):
            assert torch.equal(got, output) and got.dtype == output.dtype


@pytest.mark.parametrize("spec", AUTOCAST, ids=str)
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_autocast(torch_backend, spec, narrow, compiled, random):
    """Computes like a call on inputs of autocast's dtype; gradients have the dtype of the inputs."""
    torch = torch_backend.torch
    sample = spec.sample((3, 5), random)
    inputs = torch_backend.leaves(torch_backend.tensors(sample, "float32"), spec.differentiable(sample))
    names = spec.differentiable(sample)

    def function(*tensors):
        return torch_backend.call(spec.name, {**inputs, **dict(zip(names, tensors, strict=True))}, sample.options)

    with torch.autocast(torch_backend.device, getattr(torch, narrow)):
        outputs = (torch_backend.traced(function) if compiled else function)(*(inputs[name] for name in names))
    expected = torch_backend.call(spec.name, torch_backend.tensors(sample, narrow), sample.options)
    for got, output in zip(outputs, expected, strict=True):
        assert got.dtype == output.dtype and torch.equal(got, output)
    gradients = torch.autograd.grad(sum(output.float().sum() for output in outputs), [inputs[name] for name in names])
    assert all(gradient.dtype == torch.float32 for gradient in gradients)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_nested_autocast(torch_backend, spec, compiled, random):
    """The innermost context applies, also if it disables autocast; inside compiled code, too."""
    torch = torch_backend.torch
    sample = spec.sample((3, 5), random)
    inputs = torch_backend.tensors(sample, "float32")
    names = sample.tensors

    def autocast(dtype):
        return torch.autocast(torch_backend.device, dtype, enabled=dtype is not None)

    def function(*tensors):
        given = {**inputs, **dict(zip(names, tensors, strict=True))}
        with autocast(torch.bfloat16):
            with autocast(torch.float16):
                narrow = torch_backend.call(spec.name, given, sample.options)
            with autocast(None):
                wide = torch_backend.call(spec.name, given, sample.options)
            return narrow, wide, torch_backend.call(spec.name, given, sample.options)

    found = (torch_backend.traced(function) if compiled else function)(*(inputs[name] for name in names))
    for outputs, dtype in zip(found, ("float16", "float32", "bfloat16"), strict=True):
        tensors = torch_backend.tensors(sample, dtype if spec.autocast else "float32")
        for got, expected in zip(outputs, torch_backend.call(spec.name, tensors, sample.options), strict=True):
            assert got.dtype == expected.dtype and torch.equal(got, expected)


@pytest.mark.parametrize("spec", AUTOCAST, ids=str)
def test_autocast_mixes_dtypes_but_keeps_float64(torch_backend, spec, random):
    torch = torch_backend.torch
    sample = spec.sample((3, 5), random)
    wide, narrow = (torch_backend.tensors(sample, dtype) for dtype in ("float32", "bfloat16"))
    first = sample.tensors[0]
    with torch.autocast(torch_backend.device, torch.bfloat16):
        mixed = torch_backend.call(spec.name, {**wide, first: narrow[first]}, sample.options)
        double = torch_backend.call(spec.name, torch_backend.tensors(sample, "float64"), sample.options)
    assert all(
        torch.equal(x, y) for x, y in zip(mixed, torch_backend.call(spec.name, narrow, sample.options), strict=True)
    )
    assert all(x.dtype == torch.float64 for x in double)


@pytest.mark.parametrize("spec", AUTOCAST, ids=str)
def test_autocast_compiles_again(torch_backend, spec, random):
    """One compiled function has each call's own dtypes, outside of autocast and within."""
    torch = torch_backend.torch
    sample = spec.sample((3, 5), random)
    inputs, names = torch_backend.tensors(sample, "float32"), sample.tensors

    def function(*tensors):
        return torch_backend.call(spec.name, {**inputs, **dict(zip(names, tensors, strict=True))}, sample.options)

    compiled = torch_backend.traced(function)
    for dtype in ("float32", "bfloat16", "float16", "float32"):
        with torch.autocast(torch_backend.device, getattr(torch, dtype), enabled=dtype != "float32"):
            outputs = compiled(*(inputs[name] for name in names))
        expected = torch_backend.call(spec.name, torch_backend.tensors(sample, dtype), sample.options)
        for got, output in zip(outputs, expected, strict=True):
            assert got.dtype == output.dtype and torch.equal(got, output)


def mixes(torch_backend, sample, pairs):
    """The sample's inputs in pairs of dtypes: each floating input once in the first dtype, and the others in the
    second."""
    for first, second in pairs:
        one, others = (torch_backend.tensors(sample, dtype) for dtype in (first, second))
        yield from ({**others, name: one[name]} for name in sample.floating)


def promoted(torch, spec, sample, inputs):
    """The inputs as autocast promotes them: declared parameters and numbers do not widen the others."""
    shared = spec.shared if spec in BUILT_IN else ()  # an expression declares none
    widening = [name for name in sample.floating if name not in shared]
    widest = functools.reduce(torch.promote_types, (inputs[name].dtype for name in widening))
    wide = {name: inputs[name].to(torch.promote_types(inputs[name].dtype, widest)) for name in sample.floating}
    return {**inputs, **wide}


@pytest.mark.parametrize("spec", PROMOTED, ids=str)
@pytest.mark.parametrize("way", ["eager", "compiled", "disabled", "other device"])
def test_autocast_promotes_what_is_refused(torch_backend, spec, way, random):
    """Values and gradients are those of promoted inputs; dtypes that are supported without autocast stay unchanged."""
    torch = torch_backend.torch
    sample = spec.sample((3, 5), random)
    names = spec.differentiable(sample)
    other = "cpu" if torch_backend.device == "cuda" else "cuda"

    def outputs_and_gradients(inputs, is_traced=False):
        inputs = torch_backend.leaves(inputs, names)

        def function(*given):
            return torch_backend.call(spec.name, {**inputs, **dict(zip(names, given, strict=True))}, sample.options)

        outputs = (torch_backend.traced(function) if is_traced else function)(*(inputs[name] for name in names))
        total = sum(output.float().sum() for output in outputs if output.is_floating_point())
        return outputs, torch.autograd.grad(total, [inputs[name] for name in names])

    def is_taken(inputs):
        try:
            torch_backend.call(spec.name, inputs, sample.options)
        except RuntimeError as refused:
            assert "dtype" in str(refused)
            return False
        return True

    refused = 0
    for inputs in mixes(torch_backend, sample, PAIRS[1:3] if way == "compiled" else PAIRS):
        expected = inputs if is_taken(inputs) else promoted(torch, spec, sample, inputs)
        refused += expected is not inputs
        if way == "other device":
            torch.set_autocast_enabled(other, True)  # torch.autocast checks for the device
            try:
                assert is_taken(inputs) == (expected is inputs)
            finally:
                torch.set_autocast_enabled(other, False)
            continue
        with torch.autocast(torch_backend.device, torch.bfloat16, enabled=way != "disabled"):
            if not is_taken(inputs):
                assert way == "disabled" or not is_taken(expected)
                continue
            assert way != "disabled" or expected is inputs
            got, gradients = outputs_and_gradients(inputs, way == "compiled")
        wide, wide_gradients = outputs_and_gradients(expected)
        for x, y in zip(got, wide, strict=True):
            assert x.dtype == y.dtype and torch.equal(x, y)
        for name, x, y in zip(names, gradients, wide_gradients, strict=True):
            assert x.dtype == inputs[name].dtype and torch.equal(x, y.to(x.dtype))
    assert refused


def test_inputs_are_neither_changed_nor_returned(torch_backend, spec, dtype, random):
    for sample in (spec.sample((3, 5), random), *spec.more_samples(random)):
        inputs = torch_backend.leaves(torch_backend.tensors(sample, dtype), spec.differentiable(sample))
        before = {name: inputs[name].detach().clone() for name in sample.tensors}
        outputs = torch_backend.call(spec.name, inputs, sample.options)
        torch_backend.torch.autograd.grad(
            outputs, [inputs[n] for n in spec.differentiable(sample)], torch_backend.upstream(outputs)
        )
        storages = {inputs[name].untyped_storage().data_ptr() for name in sample.tensors}
        for output in outputs:
            assert not output.numel() or output.untyped_storage().data_ptr() not in storages
        for name, value in before.items():
            torch_backend.torch.testing.assert_close(inputs[name], value, rtol=0, atol=0, equal_nan=True)
            assert inputs[name]._version == 0


def test_functionalize(torch_backend, spec, random):
    """Innermost, where torch does not support an autograd.Function: between mutations, differentiated and mapped."""
    torch = torch_backend.torch
    function, tensors = prepared(torch_backend, spec, random)
    positions, scalar = tuple(range(len(tensors))), total(function)

    def mutating(*tensors):
        copies = [x.clone() for x in tensors]
        for x in copies:
            x.view(-1).mul_(2)
        return scalar(*copies).mul_(2)

    functional = torch.func.functionalize(mutating)
    close(torch, functional(*tensors), mutating(*tensors))
    leaves = tuple(x.clone().requires_grad_() for x in tensors)
    expected = torch.autograd.grad(mutating(*leaves), leaves)
    close(torch, torch.autograd.grad(functional(*leaves), leaves), expected)
    close(torch, torch.func.grad(functional, positions)(*tensors), expected)
    _, got = torch.func.jvp(functional, tensors, tensors)
    close(torch, got, sum((x * g).sum() for x, g in zip(tensors, expected, strict=True)))
    batches = tuple(torch.stack([x, 2 * x]) for x in tensors)
    got = torch.func.vmap(functional)(*batches)
    close(torch, got, torch.stack([mutating(*[x[i] for x in batches]) for i in range(2)]))
