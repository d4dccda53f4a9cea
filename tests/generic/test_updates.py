"""Operators over lists of tensors, most of which are mutated: values, bits, eager and compiled calls, errors."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.helpers.numerics import assert_accurate, assert_same_bits, numpy_dtype
from tests.helpers.updates import OPERATORS, SHAPES, UPDATES, Call, arrays, leading, wide
from tests.specifications import is_of_an_expression

ADAMW = UPDATES[0]
WAYS = {"torch": ("eager", "compiled"), "tf": ("eager", "graph", "xla"), "jax": ("eager", "compiled")}
WEIGHTED = [update for update in UPDATES if hasattr(update, "weighted_means")]
all_updates = pytest.mark.parametrize("update", UPDATES, ids=lambda update: update.name)


def same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, tensors in found.items():
        for i, (got, wanted) in enumerate(zip(tensors, expected[name], strict=True)):
            assert_same_bits(got, wanted, f"{name}[{i}]")


def assert_values(update, backend, call, dtype):
    """Results of a call are within the derived tolerance of the reference."""
    exact = update.reference(wide(call.lists, dtype), call.scalars, call.options)
    found = update.run(backend, call)
    assert found.keys() == exact.keys()
    for name, tensors in found.items():
        for got, (value, magnitude, roundings) in zip(tensors, exact[name], strict=True):
            assert_accurate(got, value, magnitude, roundings, f"{name} {call.options}")


def test_every_operator_over_lists_is_tested(torch_cpu):
    from fusedops.torch.library import TABLE

    found = {name for name, x in TABLE.items() if x.has_effects_or_lists and not is_of_an_expression(name)}
    assert found == OPERATORS


@all_updates
def test_values(any_backend, update, dtype, random):
    for call in update.calls(dtype, random):
        assert_values(update, any_backend, call, dtype)


@pytest.mark.parametrize("update", WEIGHTED, ids=lambda update: update.name)
def test_weighted_means(any_backend, update, dtype, random):
    """Moving averages and weight decay are accurate at both ends of their weights' range."""
    for call in update.weighted_means(dtype, random):
        assert_values(update, any_backend, call, dtype)


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.25, 0.25), (0.0, 0.0)])
def test_infinities_and_nan_follow_the_formulas(any_backend, dtype, decoupled, decay, amsgrad, betas):
    """Infinities and NaN follow the formulas, with a multiplicative decay: none is lost, and no NaN is added."""
    inf, nan = np.inf, np.nan
    values = {"params": [inf, -inf, 2, 2, nan, 2, inf, 2, 2, 2], "grads": [1, 1, inf, nan, 1, 0, 0, 1, inf, inf]}
    values |= {"exp_avgs": [1, 1, 1, 1, 1, 0, 0, inf, inf, -inf], "exp_avg_sqs": [1, 1, 1, 1, 1, inf, 0, 1, inf, 1]}
    lists = {name: [np.asarray(x).astype(numpy_dtype(dtype))] for name, x in values.items()}
    scalars = {"lr": np.float32(0.125), "step": np.float32(0), "grad_scale": None, "found_inf": None, "clip": None}
    beta1, beta2 = betas
    options = {"decoupled": decoupled, "weight_decay": decay, "beta1": beta1, "beta2": beta2}
    largest = np.asarray([0, 2, 1, inf, 1, 1, nan, 1, 1, 1])
    max_exp_avg_sqs = [largest.astype(numpy_dtype(dtype))] if amsgrad else []
    call = Call({**lists, "max_exp_avg_sqs": max_exp_avg_sqs, "steps": [], "masters": []}, scalars, options)
    found = ADAMW.run(any_backend, call)
    p, g, m, v = (np.asarray(x, "float64") for x in values.values())
    with np.errstate(invalid="ignore"):
        g = g if decoupled or not decay else g + decay * p
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        largest = np.maximum(largest, v) if amsgrad else v
        size = 0.125 / (1 - beta1) / (np.sqrt(largest) / np.sqrt(1 - beta2) + 1e-8)
        p = p * (1 - 0.125 * decay if decoupled else 1) - size * m
    for name, expected in (("params", p), ("exp_avgs", m), ("exp_avg_sqs", v)):
        got = found[name][0].astype("float64")
        for kind in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(kind(got), kind(expected), name)


@all_updates
def test_same_bits(both_backends, update, dtype, random):
    """The bits are the same in all frameworks, eager and compiled."""
    for i, call in enumerate(update.calls(dtype, random)):
        expected = update.run(both_backends[0], call)
        for backend in both_backends:
            for way in WAYS[backend.framework][: None if dtype == "float32" and i in (0, 3) else 1]:
                same_bits(update.run(backend, call, way), expected)


@all_updates
def test_threads(torch_cpu, update, random):
    torch, (call, *_) = torch_cpu.torch, update.calls("float32", random)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = update.run(torch_cpu, call)
        torch.set_num_threads(3)
        same_bits(update.run(torch_cpu, call), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_layout(torch_backend, dtype, random):
    """Misaligned and transposed tensors, and columns of larger tensors, whose other columns stay unchanged."""
    torch, (call, *_) = torch_backend.torch, ADAMW.calls(dtype, random)
    expected = ADAMW.run(torch_backend, call)

    def spread(x):
        larger = torch.full((*x.shape[:-1], x.shape[-1] + 3) if x.dim() else (2,), 5.0, dtype=x.dtype, device=x.device)
        view = larger[..., 1 : 1 + x.shape[-1]] if x.dim() else larger[1]
        return view.copy_(x), larger

    def transposed(x):
        return x.mT.contiguous().mT if x.dim() > 1 else x, None

    for lay in (spread, transposed):
        lists = {name: [lay(torch_backend.from_numpy(x)) for x in given] for name, given in call.lists.items()}
        scalars = [torch_backend.from_numpy(np.asarray(x)) if x is not None else None for x in call.scalars.values()]
        torch_backend.functions.ops.adamw(*([x for x, _ in given] for given in lists.values()), *scalars)
        for name in ADAMW.mutated:
            for (x, larger), wanted in zip(lists[name], expected[name], strict=True):
                assert_same_bits(torch_backend.to_numpy(x), wanted, name)
                if larger is not None and x.dim():
                    assert (larger[..., 0] == 5).all() and (larger[..., 1 + x.shape[-1] :] == 5).all()


def test_expanded(torch_backend, random):
    torch, (call, *_) = torch_backend.torch, ADAMW.calls("float32", random)
    lists = [[torch_backend.from_numpy(x) for x in given] for given in call.lists.values()]
    lists[0][3] = lists[0][3][:1].expand(5, 7)
    before = lists[0][0].clone()
    with pytest.raises(RuntimeError, match=r"fusedops\.adamw: params must have an element of memory for each"):
        torch_backend.functions.ops.adamw(*lists, 0.1, torch.tensor(0.0, device=before.device), None, None, None)
    assert torch.equal(lists[0][0], before)


def bad_calls(random):
    call = next(iter(ADAMW.calls("float32", random)))
    lists, doubles = call.lists, arrays(SHAPES, "float64", random)
    halves, complexes = arrays(SHAPES, "float16", random), [x.astype("complex64") for x in lists["params"]]
    first = Call({**lists, "params": complexes, "grads": complexes}, call.scalars)
    either = Call({**lists, "steps": [np.zeros((), "float32")] * len(SHAPES)}, call.scalars)
    yield call.changed("grads", lists["grads"][:3]), "grads must have as many tensors as params, 7; got 3"
    yield (
        call.changed("grads", [*lists["grads"][:5], *lists["grads"][:4:-1]]),
        "grads[5] must have params[5]'s shape, [16389]; got [2, 3, 4]",
    )
    yield call.changed("grads", doubles), "grads must have params's dtype, float32; got float64"
    yield (
        call.changed("grads", [*lists["grads"][:6], doubles[6]]),
        "grads[6] must have grads[0]'s dtype, float32; got float64",
    )
    yield call.changed("exp_avgs", halves), "exp_avgs must have params's dtype, float32; got float16"
    yield first, "params must be float64, float32, float16 or bfloat16; got complex64"
    yield call.changed("masters", lists["grads"]), "masters must be left out unless params have 16 bits; got float32"
    yield either, "steps must be given, or step in its place; got both"
    yield (
        Call(lists, {**call.scalars, "step": None}),
        "steps must be given, or step in its place; got neither",
    )
    yield (
        Call(lists, {**call.scalars, "clip": np.ones(2, "float32")}),
        "clip must be a number or a tensor of one element; got shape [2]",
    )
    yield Call(lists, {**call.scalars, "lr": "1"}), "lr must be a number or a tensor of one element; got str"


@pytest.mark.parametrize("case", range(11))
def test_refused_calls(any_backend, case, random):
    """Refused with one message, eager and compiled."""
    call, sentence = list(bad_calls(random))[case]
    for way in WAYS[any_backend.framework]:
        with pytest.raises(Exception, match=re.escape(f"fusedops.adamw: {sentence}")) as refused:
            ADAMW.run(any_backend, call, way)
        if way != "compiled":  # torch's compiler has its own errors
            assert isinstance(refused.value, any_backend.errors)


def test_no_tensors(any_backend, random):
    for update in UPDATES:
        if update.single:
            continue
        with pytest.raises(Exception, match=r"(must have at least one tensor; got none|no tensor arguments)"):
            call = next(iter(update.calls("float32", random)))
            update.run(any_backend, call.changed(next(iter(call.lists)), []))


def test_a_reader_keeps_what_it_has_read(tf_backend, random):
    """A tensor read from a variable shares its memory until the next write."""
    tf = tf_backend.tf
    params, grads, *states = (
        [tf.Variable(tf_backend.from_numpy(x)) for x in given]
        if name != "grads"
        else list(map(tf_backend.from_numpy, given))
        for name, given in next(iter(ADAMW.calls("float32", random))).lists.items()
    )
    read = params[4].read_value(), params[4].value()
    before = read[0].numpy().copy()
    with tf_backend.place:
        tf_backend.functions.ops.adamw(params, grads, *states, 0.1, tf.constant(0.0), None, None, None)
    for x in read:
        assert_same_bits(x.numpy(), before)
    assert not np.array_equal(params[4].numpy(), before)


def test_opcheck(torch_backend, random):
    """torch's own checks: only the mutated arguments of the schema change, also with functionalization."""
    torch = torch_backend.torch
    for update in UPDATES:
        call = next(iter(update.calls("float32", random)))
        lists = {name: [torch_backend.from_numpy(x) for x in given] for name, given in call.lists.items()}
        scalars = [torch_backend.from_numpy(np.asarray(x)) if x is not None else None for x in call.scalars.values()]
        op = getattr(torch.ops.fusedops, update.name).default
        result = torch.library.opcheck(op, (*leading(update, lists), *scalars), call.options)
        assert set(result.values()) == {"SUCCESS"}, update.name


def test_autograd_notices(torch_backend, random):
    """A mutated tensor has a new version; one that requires a gradient is refused."""
    torch, (call, *_) = torch_backend.torch, ADAMW.calls("float32", random)
    lists = [[torch_backend.from_numpy(x) for x in given] for given in call.lists.values()]
    ops, step = torch_backend.functions.ops, torch.zeros((), device=lists[0][0].device)
    x = torch.ones(5, 7, device=step.device, requires_grad=True)
    y = (x * lists[0][3]).sum()
    ops.adamw(*lists, 0.1, step, None, None, None)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    lists[0][0].requires_grad_()
    with pytest.raises(RuntimeError, match=r"fusedops\.adamw: params has no gradient; call it under torch\.no_grad"):
        ops.adamw(*lists, 0.1, step, None, None, None)
    with torch.no_grad():
        ops.adamw(*lists, 0.1, step, None, None, None)


def test_the_python_kernel_gives_the_same_results(torch_cpu):
    """The Python kernel gives the same results and errors."""
    from fusedops.torch.autograd import kernel
    from fusedops.torch.library import SIGNATURES

    torch = torch_cpu.torch
    of_global_norm = kernel(SIGNATURES["global_norm"])
    with pytest.raises(RuntimeError, match=r"fusedops\.global_norm: tensors has no gradient; call it under"):
        of_global_norm(None, [torch.ones(2, requires_grad=True)])
