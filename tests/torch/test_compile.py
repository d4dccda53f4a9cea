"""PyTorch: torch.compile and torch.export trace every operator without a graph break, with the bits of eager code."""

from __future__ import annotations

import inspect
import shutil
import sys

import pytest

from tests.helpers.torch_functions import (
    assert_same,
    combined,
    every_operator,
    leaves,
    outputs_and_gradients,
    tensor_function,
    with_upstream,
)
from tests.helpers.torch_layouts import transposed
from tests.specifications import WITH_SCALARS, scalars


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].compiler.reset()


def test_every_sample(torch_backend, spec, random):
    torch = torch_backend.torch
    samples = (spec.sample((5, 33), random), *spec.more_samples(random))
    function, inputs = combined(torch_backend, [(spec, sample) for sample in samples])
    got = outputs_and_gradients(torch, torch_backend.traced(function), inputs)
    assert_same(torch, got, outputs_and_gradients(torch, function, inputs))


@pytest.fixture
def inductor(torch_backend):
    torch = torch_backend.torch
    if not shutil.which("g++"):
        pytest.skip("inductor needs a compiler")
    with torch._inductor.config.patch(force_disable_caches=True):  # caches that ignore a rebuilt library
        yield torch


def test_inductor(inductor, torch_backend, spec, random):
    torch = inductor
    sample = spec.sample((5, 33), random)
    function, tensors = tensor_function(torch_backend, spec, sample, torch_backend.tensors(sample, "bfloat16"))
    inputs = leaves(spec, sample, tensors)
    got = outputs_and_gradients(torch, torch.compile(function, fullgraph=True), inputs)
    assert_same(torch, got, outputs_and_gradients(torch, function, inputs))


def test_reduce_overhead(inductor, torch_backend, random):
    """All operators in one graph, forward and backward: on a GPU as CUDA graphs, replayed on new values."""
    torch, counters = inductor, inductor._dynamo.utils.counters
    function, inputs = every_operator(torch_backend, random)
    counters.clear()
    compiled = torch.compile(function, fullgraph=True, mode="reduce-overhead")
    for step in range(4):  # the first ones warm up and record
        with torch.no_grad():
            for x in inputs:
                if x.requires_grad:
                    x.add_(0.125 * step)
        torch.compiler.cudagraph_mark_step_begin()
        got = [x.clone() for x in outputs_and_gradients(torch, compiled, inputs)]
        assert_same(torch, tuple(got), outputs_and_gradients(torch, function, inputs))
    if torch_backend.device == "cuda":
        assert not counters["inductor"]["cudagraph_skips"]


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
        if size == sizes[0]:  # the compiler may recompile once, when a number turns out to be a constant
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
        inputs = leaves(spec, sample, tensors)
        got = outputs_and_gradients(torch, compiled, inputs)
        assert_same(torch, got, outputs_and_gradients(torch, function, inputs))


def test_dynamo_alone(torch_backend, spec, random):
    """backend="eager": the traced code calls the operators with torch's own autograd."""
    torch = torch_backend.torch
    sample = spec.sample((4, 5), random)
    function, tensors = tensor_function(torch_backend, spec, sample, torch_backend.tensors(sample, "float32"))
    inputs = leaves(spec, sample, tensors)
    got = outputs_and_gradients(torch, torch.compile(function, fullgraph=True, backend="eager"), inputs)
    assert_same(torch, got, outputs_and_gradients(torch, function, inputs))


def test_rows_are_unit_stride(torch_backend, spec, random):
    """The graph copies a transposed tensor, so that the compiler joins the copy with other work: the binding would copy
    it in the forward and again in the backward."""
    from fusedops.torch.library import SIGNATURES

    torch, graphs = torch_backend.torch, []
    sample = spec.sample((3, 5, 65), random)
    function, tensors = tensor_function(torch_backend, spec, sample, torch_backend.tensors(sample, "float32"))
    inputs = tuple(map(transposed, tensors))

    def recording(graph, _):
        graphs.append(graph)
        return graph.forward

    got = torch.compile(function, fullgraph=True, backend=recording)(*inputs)
    assert_same(torch, got, function(*inputs))
    calls = [node for node in graphs[0].graph.nodes if getattr(node.target, "namespace", None) == "fusedops"]
    assert calls
    for call in calls:
        declared = SIGNATURES[call.target._opname].declaration.inputs
        for x in (arg.meta["example_value"] for d, arg in zip(declared, call.args, strict=False) if d.in_rows and arg):
            assert x.dim() == 0 or x.shape[-1] == 1 or x.stride(-1) == 1


@pytest.mark.parametrize("name, inputs", [("rms_norm", 2), ("attention", 3)])
def test_a_call_adds_few_guards(torch_backend, name, inputs):
    """Each step evaluates the guards. Those of a call are of its own code and arguments, not of the code that converts
    other arguments: beside those of the bare operator at most eight for each argument."""
    import fusedops.torch as fo
    from fusedops.torch.library import SIGNATURES

    torch, fused = torch_backend.torch, getattr(fo, name)
    bare = getattr(torch.ops.fusedops, name).default
    declared = SIGNATURES[name].declaration
    rest = [list(x.default) if x.type == "floats" else x.default for x in declared.attributes]
    rest = [None] * (len(declared.inputs) - inputs) + rest
    tensors = torch.ones(inputs, 1, 8, 2, 8) if inputs == 3 else (torch.ones(2, 8), torch.ones(8))

    def guards(function):
        found = []

        def keep_all(entries):
            found.extend(entry.name for entry in entries)
            return [True] * len(entries)

        torch.compiler.reset()
        torch.compile(function, backend="eager", options={"guard_filter_fn": keep_all})(*tensors)
        return found

    found, least = guards(lambda *tensors: fused(*tensors)), guards(lambda *tensors: bare(*tensors, *rest))
    arguments = len(inspect.signature(fused).parameters)
    assert least and not any("checked" in guard for guard in found)
    assert len(found) <= len(least) + 8 * arguments, sorted(set(found) - set(least))
    with torch.autocast(torch_backend.device, torch.bfloat16):
        assert any("checked" in guard for guard in guards(lambda *tensors: fused(*tensors)))


def test_compiled_autograd(torch_backend, random):
    """Only the backward is compiled, after an eager forward: one graph of fusedops's and torch's nodes, without a
    break. Two graphs of one kind are compiled once."""
    from torch._dynamo import compiled_autograd
    from torch._dynamo.utils import counters

    torch = torch_backend.torch
    operators, inputs = every_operator(torch_backend, random)

    def function(*tensors):
        return tuple(y.sin() for y in operators(*(x.cos() if x.requires_grad else x for x in tensors)))

    def gradients():
        for x in inputs:
            x.grad = None
        torch.autograd.backward(*with_upstream(torch, function(*inputs)))
        return [x.grad for x in inputs if x.requires_grad]

    expected = gradients()
    torch.compiler.reset()
    counters.clear()
    for _ in range(2):
        with compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
            assert_same(torch, gradients(), expected)
    assert counters["compiled_autograd"]["captures"] == 1


@pytest.mark.parametrize("spec", WITH_SCALARS, ids=str)
def test_a_compiled_number_may_change(torch_backend, spec, random):
    """A Python number is an argument, not a constant of the first call. The test uses more numbers than torch's
    recompilation limit."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch = torch_backend.torch
    numbers = scalars(spec)
    inputs = torch_backend.tensors(spec.sample((4, 5), random), "float32")
    counter = CompileCounterWithBackend("aot_eager")

    def function(number):
        return torch_backend.call(spec.name, {**inputs, **dict.fromkeys(numbers, number)})[0]

    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for number in (0.5, -2.0, *(1 / i for i in range(3, 13))):
        assert torch.equal(compiled(number), function(number))
    assert counter.frame_count <= 2  # the second compilation makes it dynamic


def test_export(torch_backend, spec, random):
    """Exported with a dynamic batch size; the program contains the operators."""
    torch = torch_backend.torch
    sample = spec.sample((4, 3, 8), random)
    function, tensors = tensor_function(torch_backend, spec, sample, torch_backend.tensors(sample, "float32"))

    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return function(*tensors)

    rows = torch.export.Dim("rows", min=2, max=64)
    shapes = tuple({0: rows} if x.dim() and x.shape[0] == 4 else None for x in tensors)
    if not any(shapes):
        pytest.skip("rows that lie one behind the other have no dimension of their own")
    program = torch.export.export(Module(), tensors, dynamic_shapes=(shapes,))
    assert f"fusedops.{spec.operator}.default" in program.graph_module.code
    other = spec.sample((7, 3, 8), random)
    tensors = tuple(torch_backend.tensors(other, "float32")[name] for name in other.tensors)
    assert_same(torch, program.module()(*tensors), function(*tensors))
