"""Linear layers: values saved for the backward, packed weights, every kernel of matmul."""

from __future__ import annotations

import contextlib
import functools

import numpy as np
import pytest

from tests.helpers.numerics import assert_same_bits
from tests.helpers.torch_functions import autograd_in_cpp

OPTIONS = {"activation": "gelu"}


def inputs_of(backend, name, dtype, random, rows=5, depth=8, columns=16):
    weights = ("weight",) if name == "linear" else ("gate_weight", "up_weight")
    x = {"x": backend.tensor(random.standard_normal((rows, depth)), dtype)}
    shape = (columns, depth)
    return x | {each: backend.tensor(random.standard_normal(shape) / depth**0.5, dtype) for each in weights}


@pytest.mark.parametrize("name", ["linear", "gated_linear"])
@pytest.mark.parametrize("keep", [True, False])
def test_what_was_not_kept_is_computed_again(torch_backend, name, keep, dtype, random):
    """The bits are the same if the recomputing kernel is the same."""
    torch = torch_backend.torch
    given = {each: x.requires_grad_() for each, x in inputs_of(torch_backend, name, dtype, random).items()}
    operator = getattr(torch.ops.fusedops, name)
    y, *kept = operator(**given, activation="gelu", keep=keep)
    assert {x.numel() for x in kept} == {y.numel() if keep else 0}
    gradients = torch.autograd.grad(y.sum(), list(given.values()))
    expected = torch.autograd.grad(operator(**given, activation="gelu", keep=True)[0].sum(), list(given.values()))
    for got, right in zip(gradients, expected, strict=True):
        assert_same_bits(torch_backend.to_numpy(got), torch_backend.to_numpy(right))


def peak_of(torch, device, function):
    """The most bytes that a call of the function allocates beyond those allocated before it."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    taken = peak = 0
    events, found = list(profile.profiler.kineto_results.experimental_event_tree()), []
    while events:
        event = events.pop()
        events += event.children
        if event.tag == torch._C._profiler._EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.alloc_size))
    for _, size in sorted(found, key=lambda each: each[0]):
        taken += size
        peak = max(peak, taken)
    return peak


@pytest.mark.parametrize("holder", ["graph", "caller", "hooks"])
def test_factors_are_freed_before_the_gradients_of_weights_are_allocated(torch_backend, random, holder):
    """Unless something else holds them: a retained graph, a caller of the operator, or hooks of saved tensors. They
    then stay as they are, and the gradients have the same bits."""
    if not autograd_in_cpp():
        pytest.skip("autograd is in Python")
    torch = torch_backend.torch
    rows, depth, columns = 512, 512, 512  # every matrix has as many bytes
    inputs = inputs_of(torch_backend, "gated_linear", "float32", random, rows, depth, columns)
    given = {name: x.requires_grad_() for name, x in inputs.items()}
    gradients = {}

    def step(holder):
        held = []
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: held.append(x) or x, lambda x: x)
        with hooks if holder == "hooks" else contextlib.nullcontext():
            y, *factors = torch.ops.fusedops.gated_linear(**given, activation="silu")
        if holder == "caller":
            held.extend(factors)
        del factors
        before = [x.sum().item() for x in held]
        retain = holder == "graph"
        gradients[holder] = torch.autograd.grad(y, list(given.values()), torch.ones_like(y), retain_graph=retain)
        assert [x.sum().item() for x in held] == before

    free, kept = (peak_of(torch, torch_backend.device, functools.partial(step, each)) for each in (None, holder))
    matrix = 4 * rows * columns
    assert kept - free >= 2 * matrix
    for got, expected in zip(gradients[holder], gradients[None], strict=True):
        assert torch.equal(got, expected)


def columns_near_zero(backend, name, dtype, random, rows, depth, columns):
    """Inputs whose sums and biases nearly cancel: a sum rounded before the bias is added has another sign."""
    inputs = inputs_of(backend, name, dtype, random, rows, depth, columns)
    x, weight, *_ = (backend.to_numpy(each).astype(np.float64) for each in inputs.values())
    near = -(x[:1] @ weight.T)[0] * (1 + random.choice([0, 1e-3, -1e-3, 1e-2], size=columns))
    if name == "linear":
        return {**inputs, "bias": backend.tensor(near, dtype)}
    inputs["up_weight"] = backend.tensor(np.zeros((columns, depth)), dtype)  # the second factor is 1
    return {**inputs, "gate_bias": backend.tensor(near, dtype), "up_bias": backend.tensor(np.ones(columns), dtype)}


def result_and_gradient(backend, call, inputs, name):
    """The gradient of the result's sum with respect to one input."""
    if backend.framework == "torch":
        inputs = backend.leaves(inputs, (name,))
        y, *saved = call(*inputs.values())
        (gradient,) = backend.torch.autograd.grad(y.sum(), inputs[name])
    else:
        with backend.tf.GradientTape() as tape:
            tape.watch(inputs[name])
            y, *saved = call(*inputs.values())
        gradient = tape.gradient(y, inputs[name])
    return [backend.to_numpy(each).astype(np.float64) for each in (y, gradient, *saved)]


@pytest.mark.frameworks("torch", "tf")
@pytest.mark.parametrize("name", ["linear", "gated_linear"])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("shape", [(1, 33, 1 << 16), (9, 64, 4096), (64, 64, 1024), (200, 128, 64 * 70)], ids=str)
def test_the_slope_is_that_of_the_activated_value(any_backend, name, keep, shape, dtype, random):
    """The gradient of relu is 1 exactly where its result is positive: the sum over rows in a bias's gradient counts
    these. Few and many rows have their own kernels; unsaved values are recomputed."""
    rows = shape[0]
    inputs = columns_near_zero(any_backend, name, dtype, random, *shape)
    call = functools.partial(getattr(any_backend.functions.ops, name), activation="relu", keep=keep)
    y, gradient, *saved = result_and_gradient(any_backend, call, inputs, "bias" if name == "linear" else "gate_bias")
    assert 0 < np.count_nonzero(y) < y.size
    assert rows <= 256  # counts representable in bfloat16
    np.testing.assert_array_equal(gradient, np.count_nonzero(y, axis=0))
    if keep:
        np.testing.assert_array_equal(y, np.maximum(saved[0], 0))


@pytest.mark.parametrize("name", ["linear", "gated_linear"])
def test_nothing_is_kept_without_need(torch_cpu, name, random):
    torch, fo = torch_cpu.torch, torch_cpu.functions
    given = inputs_of(torch_cpu, name, "float32", random)
    call = getattr(fo, name)

    def kept(**tensors):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.shape) or x, lambda x: x):
            saved = []
            call(**tensors, activation="silu")
            return saved

    assert kept(**given) == []
    wanted = {each: x.clone().requires_grad_() for each, x in given.items()}
    assert (5, 16) in [tuple(shape) for shape in kept(**wanted)]
    with torch.no_grad():
        assert kept(**wanted) == []


def test_a_function_that_was_traced_without_a_tape(tf_backend, random):
    """TensorFlow saves nothing in it; differentiated as a whole, the function has the gradient nevertheless."""
    tf, fo = tf_backend.tf, tf_backend.functions
    given = inputs_of(tf_backend, "linear", "float32", random)

    @tf.function
    def layer(x, weight):
        return fo.linear(x, weight, activation="silu")

    layer(**given)
    with tf.GradientTape() as tape:
        tape.watch(list(given.values()))
        y = layer(**given)
    with tf.GradientTape() as plain:
        plain.watch(list(given.values()))
        expected = fo.linear(**given, activation="silu")
    sources = list(given.values())
    for got, right in zip(tape.gradient(y, sources), plain.gradient(expected, sources), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["linear", "gated_linear", "linear_cross_entropy"])
@pytest.mark.parametrize("stride", [0, 3])
def test_rows_that_overlap(torch_backend, name, stride, random):
    """Overlapping rows of x and of the upstream gradient: the products cannot read them in place."""
    torch, fo = torch_backend.torch, torch_backend.functions
    given = inputs_of(torch_backend, "linear" if name == "linear_cross_entropy" else name, "float32", random)
    x, dy = (torch_backend.tensor(random.standard_normal(64), "float32") for _ in range(2))
    given["x"] = x.as_strided((5, 8), (stride, 1))
    dy = dy.as_strided((5, 16), (stride, 1))
    if name == "linear_cross_entropy":
        labels = torch.arange(5, device=x.device)
        call, dy = functools.partial(fo.linear_cross_entropy, labels=labels, reduction="none"), dy[:, 0]
    else:
        call = functools.partial(getattr(fo, name), activation="tanh")

    def results(given, dy):
        given = {each: x.detach().requires_grad_() for each, x in given.items()}
        y = call(**given)
        return y, *torch.autograd.grad(y, list(given.values()), dy)

    expected = results({each: x.contiguous() for each, x in given.items()}, dy.contiguous())
    for got, right in zip(results(given, dy), expected, strict=True):
        assert_same_bits(torch_backend.to_numpy(got), torch_backend.to_numpy(right))


@pytest.mark.parametrize("transpose", [True, False], ids=["out-in", "in-out"])
@pytest.mark.parametrize("placement", ["gate first", "up first", "other strides", "same data"])
@pytest.mark.parametrize("shape", [(5, 8, 16), (200, 72, 64 * 40), (257, 64, 64 * 35)], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_placements_of_both_weights(torch_backend, transpose, placement, shape, dtype, random):
    """Halves of one tensor in either order, weights of different strides, and one weight for both are read in place.

    Large ones take one kernel on a GPU of compute capability 9.x.
    """
    torch, fo = torch_backend.torch, torch_backend.functions
    rows, depth, columns = shape
    x = torch_backend.tensor(random.standard_normal((rows, depth)), dtype)
    whole = torch_backend.tensor(random.standard_normal((2 * columns, depth)) / depth**0.5, dtype)
    whole = whole if transpose else whole.t().contiguous()
    gate, up = whole.chunk(2, 0 if transpose else 1)
    if placement == "up first":
        gate, up = up, gate
    elif placement == "other strides":
        up = torch.cat([up, up[:, :8]], 1)[:, : up.shape[1]]
    elif placement == "same data":
        up = gate
    biases = [torch_backend.tensor(random.standard_normal(columns), dtype) for _ in range(2)]
    got = fo.gated_linear(x, gate, up, *biases, transpose_weight=transpose)
    gates, ups = (w.double() if transpose else w.double().t() for w in (gate, up))
    left, right = (x.double() @ w.t() + b.double() for w, b in zip((gates, ups), biases, strict=True))
    expected = torch.nn.functional.silu(left) * right
    # Two factors that may be rounded, and the result: three half ulps of a value, and float32's sums.
    eps = torch.finfo(x.dtype).eps
    sizes = (left.abs() + 1) * (right.abs() + 1)
    assert bool(((got.double() - expected).abs() <= 1.6 * eps * sizes).all())


@pytest.mark.parametrize("rows", [1, 9, 64, 300])
@pytest.mark.parametrize("activation", ["identity", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_epilogues(torch_backend, rows, activation, dtype, random):
    """Every kernel of matmul: few rows, small and large tiles, split-K, sm90."""
    torch, fo = torch_backend.torch, torch_backend.functions
    for depth, columns in ((64, 128 * 90), (4096, 72)):
        x = torch_backend.tensor(random.standard_normal((rows, depth)), dtype)
        weight = torch_backend.tensor(random.standard_normal((columns, depth)) / depth**0.5, dtype)
        bias = torch_backend.tensor(random.standard_normal(columns), dtype)
        got = fo.linear(x, weight, bias, activation)
        expected = fo.bias_act(x.double() @ weight.double().t(), bias.double(), activation)
        # Rounded once; the sums err by the root of their length, of terms whose squares add up to about 1.
        limit = torch.finfo(x.dtype).eps * expected.abs() + depth**0.5 * torch.finfo(torch.float32).eps * 8
        assert bool(((got.double() - expected).abs() <= limit).all())
