"""Tests that need a GPU: more than 2^31 elements, CUDA graphs, streams, a second GPU, TensorFlow's placement."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.helpers.frameworks import Backend
from tests.helpers.numerics import assert_same_bits
from tests.helpers.rows import BY_ROWS, rows
from tests.specifications import SPECIFICATIONS, WITH_SCALARS, scalars

LARGE = 2**31 + 4099  # elements: beyond 32-bit indices, and not a multiple of a vector or a block


@pytest.fixture
def whole_gpu(torch_gpu, alone):
    """Frees its memory at the end, since other processes run tests on the same GPU."""
    yield torch_gpu
    torch_gpu.torch.cuda.empty_cache()


def filled(torch, spec, count: int):
    """Tensors of `count` elements that repeat a sample's values, and the sample."""
    sample = spec.sample((4099,), np.random.default_rng(5))
    arrays = {}
    for name, value in sample.inputs.items():
        small = torch.from_numpy(np.asarray(value)).to("cuda", torch.bfloat16)
        arrays[name] = small if small.dim() == 0 else small.repeat(-(-count // 4099))[:count]
    return sample, arrays


@pytest.mark.parametrize("spec", BY_ROWS, ids=str)
@pytest.mark.parametrize("columns", [4099, 8192, 20_000])
def test_rows_of_more_than_2_31_elements(whole_gpu, spec, columns):
    """A few rows repeated, forward and backward: each has the bits that it has in the small call."""
    torch = whole_gpu.torch
    few, copies = 61, LARGE // (61 * columns) + 1
    sample = spec.sample((few, *(1,) * (spec.least_rank - 2), columns), np.random.default_rng(5))
    options = {**sample.options, **spec.row_options}
    small = whole_gpu.tensors(sample, "bfloat16")
    of_rows = [name for name in sample.tensors if small[name].shape[:1] == (few,)]
    wanted = [name for name in of_rows if name in spec.differentiable(sample)]

    def repeated(x):
        return x.repeat(copies, *(1,) * (x.dim() - 1))

    large = {name: repeated(x) if name in of_rows else x for name, x in small.items()}
    assert max(large[name].numel() for name in of_rows) > 2**31

    found = []
    for inputs in (large, small):
        leaves = whole_gpu.leaves(inputs, wanted)
        outputs = whole_gpu.call(spec.name, leaves, options)
        ones = [torch.ones((), device="cuda", dtype=y.dtype).expand_as(y) for y in outputs]
        gradients = torch.autograd.grad(outputs, [leaves[name] for name in wanted], ones)
        found.append([*(y.detach() for y in outputs), *gradients])
    for got, period in zip(*found, strict=True):
        assert_repeats(torch, got, period)


def assert_repeats(torch, got, period):
    whole = got.view(-1, *period.shape)
    for first in range(0, len(whole), 1024):  # piecewise: comparisons take memory
        assert torch.equal(whole[first : first + 1024], period.expand_as(whole[first : first + 1024]))


@pytest.mark.parametrize("features", [64, 128])
@pytest.mark.parametrize("softcap", [0.0, 20.0], ids=["plain", "capped"])  # sm90 and sm80 kernels on 9.x
def test_attention_of_more_than_2_31_elements(whole_gpu, features, softcap, random):
    """A few sequences repeated, forward and backward: each has the bits that it has in the small call."""
    torch = whole_gpu.torch
    few = [whole_gpu.tensor(random.standard_normal((5, 130, 1024 // features, features)), "bfloat16") for _ in "qkv"]
    copies = LARGE // few[0].numel() + 1
    found = []
    for inputs in ([x.repeat(copies, 1, 1, 1) for x in few], few):
        inputs = [x.requires_grad_() for x in inputs]
        y = whole_gpu.functions.attention(*inputs, causal=True, softcap=softcap)
        upstream = torch.ones((), device=y.device, dtype=y.dtype).expand_as(y)
        found.append([y.detach(), *torch.autograd.grad(y, inputs, upstream)])
        del y, upstream
    for got, period in zip(*found, strict=True):
        assert_repeats(torch, got, period)


# Rows and columns of a period of groups: for few and for many rows of a group, misaligned ones, and another dtype.
GROUPS = {
    "few-rows": ((20, 0, 12), 8, 8, "bfloat16"),
    "many-rows": ((130, 0, 1, 65), 64, 72, "bfloat16"),
    "misaligned": ((130, 0, 1, 65), 65, 63, "bfloat16"),
    "float32": ((130, 0, 1, 65), 64, 64, "float32"),
}


@pytest.mark.parametrize("groups", GROUPS)
def test_groups_of_more_than_2_31_elements(whole_gpu, groups, random):
    """A few groups repeated, forward and backward: each has the bits that it has in the small call."""
    torch = whole_gpu.torch
    sizes, columns, out, dtype = GROUPS[groups]
    rows = sum(sizes)
    shapes = (rows, columns), (len(sizes), out, columns)
    few = [whole_gpu.tensor(random.standard_normal(shape), dtype) for shape in shapes]
    copies = LARGE // (rows * min(columns, out)) + 1
    found = []
    for count in (copies, 1):
        x, weights = (v.repeat(count, *(1,) * (v.dim() - 1)).requires_grad_() for v in few)
        ends = torch.tensor(sizes, device=x.device).repeat(count).cumsum(0)
        offsets = torch.nn.functional.pad(ends, (1, 0)).int()
        y = whole_gpu.functions.grouped_matmul(x, weights, offsets)
        upstream = torch.ones((), device=y.device, dtype=y.dtype).expand_as(y)
        found.append([y.detach(), *torch.autograd.grad(y, [x, weights], upstream)])
        del x, weights, y, upstream
    assert found[0][0].numel() > 2**31 and found[0][1].numel() > 2**31
    for got, period in zip(*found, strict=True):
        assert_repeats(torch, got, period)


@pytest.mark.parametrize("size", [32, 36], ids=["one-kernel", "two-kernels"])  # the first product and the gate
def test_experts_of_more_than_2_31_elements(whole_gpu, size, random):
    """A few tokens repeated: outputs and gradients of tokens have the bits of the small call. Gradients of parameters
    are those of single tokens, since all others have an upstream gradient of 0: these are exact in both calls."""
    torch = whole_gpu.torch
    few, columns, experts = 140, 64, 6  # as many rows of a group as take the same kernel in both calls
    shapes = (few, columns), (few, 2), (experts, 2 * size, columns), (experts, columns, size)
    x, weight, gate_up, down = (whole_gpu.tensor(random.standard_normal(shape), "bfloat16") for shape in shapes)
    index = torch.arange(2 * few, device=x.device).view(few, 2) % (experts + 1)  # the last one is out of range
    ends = 0, few // 2 + 1  # tokens with an upstream gradient, of the first and the last period: their experts differ
    assert not set(index[ends[0]].tolist()) & set(index[ends[1]].tolist())
    copies = LARGE // (2 * few * columns) + 1  # gates and ups, and results of slots
    of_tokens, of_parameters = [], []
    for count in (copies, 1):
        tokens = [v.repeat(count, 1).requires_grad_(v.is_floating_point()) for v in (x, index, weight)]
        matrices = [v.detach().requires_grad_() for v in (gate_up, down)]
        y = whole_gpu.functions.experts(*tokens, *matrices)
        upstream = torch.zeros_like(y)
        upstream[ends[0]] = upstream[few * (count - 1) + ends[1]] = 1
        of_parameters.append(torch.autograd.grad(y, matrices, upstream, retain_graph=True))
        upstream = upstream.fill_(1)
        of_tokens.append([y.detach(), *torch.autograd.grad(y, tokens[::2], upstream)])
        del tokens, y, upstream
    assert all(v.any() for v in of_parameters[1])
    for got, period in zip(*of_tokens, strict=True):
        assert_repeats(torch, got, period)
    for got, expected in zip(*of_parameters, strict=True):
        assert torch.equal(got, expected)


def test_a_product_of_more_than_2_31_misaligned_elements(whole_gpu, random):
    """Rows are repeated, and copied in parts."""
    torch = whole_gpu.torch
    few = whole_gpu.tensor(random.standard_normal((1001, 32_769)), "bfloat16")
    b = whole_gpu.tensor(random.standard_normal((32_769, 8)), "bfloat16")
    exact = few.double() @ b.double()
    limit = 0.505 * 2**-7 * exact.abs() + 32_769 * 2**-24 * (few.double().abs() @ b.double().abs())
    copies = LARGE // few.numel() + 1
    got = whole_gpu.functions.matmul(few.repeat(copies, 1), b).view(copies, 1001, 8)
    assert ((got.double() - exact).abs() <= limit).all()
    assert torch.isfinite(got).all()


@pytest.mark.parametrize(
    "spec", [spec for spec in SPECIFICATIONS if spec.least_rank == 0 and spec.rows_are_independent], ids=str
)
@pytest.mark.parametrize("extra", [0, 1], ids=["aligned", "misaligned"])
def test_more_than_2_31_elements(whole_gpu, spec, extra):
    """Every period of the result has the bits of the first, forward and backward."""
    torch = whole_gpu.torch
    _, inputs = filled(torch, spec, LARGE + extra)
    given = {name: (x[extra:] if x.dim() else x).requires_grad_() for name, x in inputs.items()}
    names = list(given)
    (output,) = whole_gpu.call(spec.name, given)
    small = {name: (x[extra : extra + 4099] if x.dim() else x).detach().requires_grad_() for name, x in inputs.items()}
    (expected,) = whole_gpu.call(spec.name, small)

    def assert_periodic(large, period):
        whole = large.numel() // 4099
        for first in range(0, whole, 2**16):  # piecewise: comparisons take memory
            piece = large[first * 4099 : min(first + 2**16, whole) * 4099].view(-1, 4099)
            assert torch.equal(piece, period.expand_as(piece))
        tail = large[whole * 4099 :]
        assert torch.equal(tail, period[: tail.numel()])

    assert_periodic(output.detach(), expected.detach())
    large = [name for name in names if given[name].dim()]
    upstream = torch.ones((), device="cuda", dtype=torch.bfloat16)
    found = torch.autograd.grad(output, [given[n] for n in large], upstream.expand_as(output))
    wanted = torch.autograd.grad(expected, [small[n] for n in large], upstream.expand_as(expected))
    for got, period in zip(found, wanted, strict=True):
        assert_periodic(got, period)


@pytest.mark.parametrize("spec", WITH_SCALARS, ids=str)
def test_a_sum_over_more_than_2_31_elements(whole_gpu, spec):
    """The gradient of a parameter is a sum over all elements, which are integers: the expected sum is exact."""
    torch = whole_gpu.torch
    x = torch.zeros(LARGE, device="cuda", dtype=torch.bfloat16)
    ends = [0, 1, 2**31 - 1, 2**31, LARGE - 1]
    x[ends] = 1
    for name in scalars(spec):
        sample = spec.sample((2,), np.random.default_rng(0))
        inputs = {key: x if np.ndim(value) else torch.ones((), device="cuda") for key, value in sample.inputs.items()}
        inputs[name] = inputs[name].requires_grad_()
        (output,) = whole_gpu.call(spec.name, inputs)
        (gradient,) = torch.autograd.grad(
            output, inputs[name], torch.ones((), device="cuda", dtype=output.dtype).expand_as(output)
        )
        assert gradient.item() == len(ends)


def test_a_matrix_of_more_than_2_31_elements(whole_gpu):
    """Checks the first and last rows and those around 2^31, of a product whose input and output are both that large."""
    torch = whole_gpu.torch
    columns = 128
    rows = LARGE // columns + 130
    generator = np.random.default_rng(6)
    numbers = [torch.from_numpy(generator.standard_normal((n, columns))) for n in (4099, columns)]
    a, b = (x.to("cuda", torch.bfloat16) for x in numbers)
    a = a.repeat(-(-rows // 4099), 1)[:rows]
    (c,) = whole_gpu.call("matmul", {"a": a, "b": b})
    for middle in (64, 2**31 // columns, rows - 64):
        part = slice(middle - 64, middle + 64)
        torch.testing.assert_close(c[part].double(), a[part].double() @ b.double(), rtol=2**-8, atol=1e-3)


def test_cuda_graph(torch_gpu, spec, dtype, random):
    check_cuda_graph(torch_gpu, spec, dtype, [spec.sample((65, 130), random) for _ in range(2)])


@pytest.mark.parametrize("spec", BY_ROWS, ids=str)
def test_cuda_graph_of_many_long_rows(torch_gpu, spec, dtype, random):
    check_cuda_graph(torch_gpu, spec, dtype, [rows(spec, 300, 20_000, random) for _ in range(2)])


def check_cuda_graph(torch_gpu, spec, dtype, samples):
    """Captures forward and backward, and replays them on new values: no allocation, synchronization or default
    stream."""
    torch = torch_gpu.torch
    inputs, others = (torch_gpu.tensors(sample, dtype) for sample in samples)
    names = spec.differentiable(samples[0])
    leaves = torch_gpu.leaves(inputs, names)
    upstream = torch_gpu.upstream(torch_gpu.call(spec.name, inputs, samples[0].options))

    def step():
        outputs = torch_gpu.call(spec.name, leaves, samples[0].options)
        return [*outputs, *torch.autograd.grad(outputs, [leaves[name] for name in names], upstream)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for name in names:
            leaves[name].copy_(others[name])
    graph.replay()
    torch.cuda.synchronize()
    replayed = [x.clone() for x in captured]
    for got, expected in zip(replayed, step(), strict=True):
        assert torch.equal(got, expected)


def test_other_streams(torch_gpu, spec, random):
    """Work goes to the current stream: after its queued work, even if other streams are idle."""
    torch = torch_gpu.torch
    sample = spec.sample((257, 1025), random)
    inputs = torch_gpu.tensors(sample, "float32")
    expected = torch_gpu.gradients(spec.name, inputs, sample.options, spec.differentiable(sample))
    late = {
        name: torch.full_like(x, math.nan)
        if name in sample.floating
        else torch.zeros_like(x)
        if torch.is_tensor(x)
        else x
        for name, x in inputs.items()
    }
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # tens of milliseconds, in which a kernel on another stream would read NaN
        for name in sample.tensors:
            late[name].copy_(inputs[name])
        outputs, gradients = torch_gpu.gradients(spec.name, late, sample.options, spec.differentiable(sample))
    stream.synchronize()
    assert all(torch.equal(got, output) for got, output in zip(outputs, expected[0], strict=True))
    assert all(torch.equal(gradients[name], expected[1][name]) for name in gradients)


def test_threads_launch_one_kernel_with_different_shared_memory(torch_gpu):
    """A kernel's shared memory limit is common to all threads: no thread may lower it between another's request and its
    launch. The backward needs more of it for rows that share a block than for longer rows."""
    torch, raw = torch_gpu.torch, torch_gpu.torch.ops.fusedops

    def launch(columns):
        with torch.cuda.stream(torch.cuda.Stream()):
            x, weight = (torch.ones(size, device="cuda", dtype=torch.bfloat16) for size in ((64, columns), (columns,)))
            y, rstd = raw.rms_norm(x, weight)
            for _ in range(3000):
                raw.rms_norm_backward(y, x, weight, rstd)  # torch releases Python's global interpreter lock

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(launch, (1024, 8192)))
    torch.cuda.synchronize()


def test_the_second_gpu(torch_gpu, spec, dtype, random):
    """The call runs on its tensors' GPU, whichever is current; its bits equal the first GPU's."""
    torch = torch_gpu.torch
    if torch.cuda.device_count() < 2:
        pytest.skip("GPU: one only")
    torch.cuda.set_device(0)  # TensorFlow, once initialized in this process, leaves the last GPU current
    sample = spec.sample((33, 1025), random)
    inputs = torch_gpu.tensors(sample, dtype)
    moved = {name: x.to("cuda:1") if name in sample.tensors else x for name, x in inputs.items()}
    outputs, gradients = torch_gpu.gradients(spec.name, inputs, sample.options, spec.differentiable(sample))
    upstream = tuple(dy.to("cuda:1") for dy in torch_gpu.upstream(outputs))
    assert torch.cuda.current_device() == 0
    others, other_gradients = torch_gpu.gradients(
        spec.name, moved, sample.options, spec.differentiable(sample), upstream
    )
    assert torch.cuda.current_device() == 0
    for got, expected in zip([*others, *other_gradients.values()], [*outputs, *gradients.values()], strict=True):
        assert got.device.index == 1
        assert_same_bits(torch_gpu.to_numpy(got), torch_gpu.to_numpy(expected))


def test_tensorflow_places_on_the_gpu(tf_gpu, spec, random):
    """Placed on the GPU by default, like TensorFlow's own operators, and on the CPU on request."""
    tf = tf_gpu.tf
    sample = spec.sample((33, 130), random)
    inputs = tf_gpu.tensors(sample, "float32")

    def call():
        return Backend.call(tf_gpu, spec.name, inputs, sample.options)  # without the backend's device scope

    with tf.device(None):
        assert all("GPU:0" in output.device for output in call())
        assert all("GPU:0" in output.device for output in tf.function(call)())
    with tf.device("/CPU:0"):
        assert all("CPU:0" in output.device for output in call())
