"""PyTorch: torch.compile and torch.export take every operator whole, with the bits of eager code."""

from __future__ import annotations

import shutil
import sys

import pytest
from checks import tuples
from specification import Sample
from specifications import WITH_SCALARS, scalars


def tensor_function(backend, spec, sample: Sample, inputs):
    names = sample.tensors

    def function(*tensors):
        given = {**inputs, **dict(zip(names, tensors, strict=True))}
        outputs = backend.call(spec.name, given, sample.options)
        return outputs if len(outputs) > 1 else outputs[0]

    return function, tuple(inputs[name] for name in names)


def value_and_gradients(torch, spec, sample: Sample, function, tensors):
    wanted = spec.differentiable(sample)
    named = zip(sample.tensors, tensors, strict=True)
    leaves = tuple(x.detach().clone().requires_grad_(name in wanted) for name, x in named)
    outputs = tuples(function(*leaves))
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    return (*outputs, *torch.autograd.grad(outputs, wanted, [torch.full_like(y, 0.75) for y in outputs]))


def assert_same(torch, got, expected):
    for left, right in zip(tuples(got), tuples(expected), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].compiler.reset()


def test_every_sample(torch_backend, spec, random):
    torch = torch_backend.torch
    for sample in (spec.sample((5, 33), random), *spec.more_samples(random)):
        function, tensors = tensor_function(torch_backend, spec, sample, torch_backend.tensors(sample, "float32"))
        compiled = torch_backend.traced(function)
        case = (torch, spec, sample)
        assert_same(torch, value_and_gradients(*case, compiled, tensors), value_and_gradients(*case, function, tensors))


def test_inductor(torch_backend, spec, random):
    torch = torch_backend.torch
    if not shutil.which("g++"):
        pytest.skip("inductor needs a compiler")
    sample = spec.sample((5, 33), random)
    function, tensors = tensor_function(torch_backend, spec, sample, torch_backend.tensors(sample, "bfloat16"))
    compiled = torch.compile(function, fullgraph=True)
    case = (torch, spec, sample)
    with torch._inductor.config.patch(force_disable_caches=True):  # which know nothing of a library built anew
        got = value_and_gradients(*case, compiled, tensors)
    assert_same(torch, got, value_and_gradients(*case, function, tensors))


def test_one_graph_for_all_batch_sizes(torch_backend, spec, random):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch = torch_backend.torch
    counter = CompileCounterWithBackend("aot_eager")
    sizes = (6, 9, 2, 17)
    first = spec.sample((sizes[0], 5, 8), random)
    function, _ = tensor_function(torch_backend, spec, first, torch_backend.tensors(first, "float32"))
    compiled = torch.compile(function, fullgraph=True, backend=counter, dynamic=True)
    for size in sizes:
        sample = spec.sample((size, 5, 8), random)
        tensors = tuple(torch_backend.tensors(sample, "float32")[name] for name in sample.tensors)
        assert_same(torch, compiled(*tensors), function(*tensors))
        if size == sizes[0]:  # the compiler may start over once, when it finds that a number is a constant
            first_time = counter.frame_count
    assert counter.frame_count == first_time


def test_gradients_with_dynamic_shapes(torch_backend, spec, random):
    torch = torch_backend.torch
    first = spec.sample((6, 5, 8), random)
    function, _ = tensor_function(torch_backend, spec, first, torch_backend.tensors(first, "float32"))
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for size in (6, 11):
        sample = spec.sample((size, 5, 8), random)
        tensors = tuple(torch_backend.tensors(sample, "float32")[name] for name in sample.tensors)
        case = (torch, spec, sample)
        assert_same(torch, value_and_gradients(*case, compiled, tensors), value_and_gradients(*case, function, tensors))


@pytest.mark.parametrize("spec", WITH_SCALARS, ids=str)
def test_a_compiled_number_may_change(torch_backend, spec, random):
    """A Python number is an argument, not a constant of the first call."""
    torch = torch_backend.torch
    numbers = scalars(spec)
    inputs = torch_backend.tensors(spec.sample((4, 5), random), "float32")

    def function(number):
        return torch_backend.call(spec.name, {**inputs, **dict.fromkeys(numbers, number)})[0]

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for number in (0.5, -2.0, 1 / 3):
        assert torch.equal(compiled(number), function(number))


def test_export(torch_backend, spec, random):
    """To a program whose batch size is free, with the operators in it."""
    torch = torch_backend.torch
    sample = spec.sample((4, 3, 8), random)
    function, tensors = tensor_function(torch_backend, spec, sample, torch_backend.tensors(sample, "float32"))

    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return function(*tensors)

    rows = torch.export.Dim("rows", min=2, max=64)
    shapes = tuple({0: rows} if x.dim() and x.shape[0] == 4 else None for x in tensors)
    program = torch.export.export(Module(), tensors, dynamic_shapes=(shapes,))
    assert f"fusedops.{spec.name}.default" in program.graph_module.code
    other = spec.sample((7, 3, 8), random)
    tensors = tuple(torch_backend.tensors(other, "float32")[name] for name in other.tensors)
    assert_same(torch, program.module()(*tensors), function(*tensors))
