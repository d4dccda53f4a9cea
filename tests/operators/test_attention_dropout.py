"""attention with dropout: the dropped elements, and unchanged results without dropout."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.helpers.dropout import keep_mask
from tests.helpers.numerics import assert_same_bits

SEED = (0x299F31D0_A4093822, -0x03707344_13198A2E)


def named(*arrays):
    return dict(zip("qkv", arrays, strict=True))


@pytest.mark.parametrize("seq_dim", [-3, -2])
@pytest.mark.parametrize("heads", [(1, 1), (4, 2)], ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 6), (40, 256), (130, 133), (140, 150), (1, 255)])
def test_the_mask_is_that_of_dropout(any_backend, dtype, seq_dim, heads, queries, keys, random):
    """The mask equals that of `dropout` on a tensor of all probabilities, in every dtype and layout: with values that
    are rows of the identity, the result is the probabilities themselves."""

    def arranged(x):
        return x if seq_dim == -2 else x.swapaxes(-3, -2)

    shapes = (heads[0], queries), (heads[1], keys)
    q, k = (0.3 * random.normal(size=(2, *shape, 5)) for shape in shapes)  # no probability is subnormal
    v = np.broadcast_to(np.eye(keys), (2, heads[1], keys, keys))
    tensors = {name: any_backend.tensor(arranged(x), dtype) for name, x in named(q, k, v).items()}
    size = queries * keys
    of_part = (*SEED, 3 * size, heads[0] * size, 9 * size)  # the heads from 3 on among 9
    seeds = [any_backend.tensor(np.array(seed), "int64") for seed in (SEED, of_part)]
    whole, *dropped = (
        arranged(any_backend.to_numpy(any_backend.call("attention", tensors, given)[0]).astype(np.float64))
        for given in ({"seq_dim": seq_dim}, *({"seq_dim": seq_dim, "dropout": 0.3, "seed": seed} for seed in seeds))
    )
    assert np.all(whole)
    for seed, y in zip((SEED, of_part), dropped, strict=True):
        mask = keep_mask((2, heads[0], queries, keys), 0.3, seed)
        np.testing.assert_array_equal(y != 0, mask)
        precision = {"float64": 2**-50, "float32": 2**-20, "float16": 2**-8, "bfloat16": 2**-5}[dtype]
        np.testing.assert_allclose(y, np.where(mask, whole / 0.7, 0), rtol=precision)


def test_the_mask_of_the_backward(any_backend, dtype, random):
    """For one query dv = dropped p · dy: it has the zeros of the forward, also with a drawn seed."""
    arrays = random.normal(size=(2, 1, 3, 8)), random.normal(size=(2, 200, 3, 8)), np.ones((2, 200, 3, 8))
    tensors = {name: any_backend.tensor(x, dtype) for name, x in named(*arrays).items()}
    of_part = (*SEED, 200, 600, 1600)  # the heads from 1 on among 8
    for seed in (SEED, of_part, None)[: 3 - (any_backend.framework == "jax")]:  # JAX draws none
        given = None if seed is None else any_backend.tensor(np.array(seed), "int64")
        dy = any_backend.tensor(np.ones((2, 1, 3, 8)), dtype)
        (y,), gradients = any_backend.gradients(
            "attention", tensors, {"dropout": 0.5, "seed": given}, ("q", "v"), (dy,)
        )
        y, dq, dv = (any_backend.to_numpy(x).astype(np.float64) for x in (y, *gradients.values()))
        if seed is not None:
            np.testing.assert_array_equal(dv[..., 0] != 0, keep_mask((2, 3, 1, 200), 0.5, seed)[:, :, 0].swapaxes(1, 2))
        # both are the sum of undropped probabilities
        np.testing.assert_allclose(dv[..., 0].sum(1), y[:, 0, :, 0], rtol=0.05)
        assert 50 < np.count_nonzero(dv[0, :, 0, 0]) < 150
        assert np.all(np.isfinite(dq)) and np.any(dq)


def test_a_rate_of_zero_changes_no_bit(any_backend, random):
    tensors = {name: any_backend.tensor(random.normal(size=(2, 40, 2, 16)), "bfloat16") for name in "qkv"}
    found = [
        any_backend.gradients("attention", tensors, {"causal": True, **given}, ("q", "k", "v"))
        for given in ({}, {"dropout": 0.0}, {"dropout": 0, "seed": SEED})
    ]
    for (y,), gradients in found[1:]:
        assert_same_bits(any_backend.to_numpy(y), any_backend.to_numpy(found[0][0][0]))
        for name, x in gradients.items():
            assert_same_bits(any_backend.to_numpy(x), any_backend.to_numpy(found[0][1][name]))


def test_the_kernel_with_dropout_at_a_rate_of_nearly_zero(torch_cpu, random):
    """It drops nothing, and 1 / (1 - rate) is 1: on a CPU the bits are those of the kernel without dropout."""
    torch = torch_cpu.torch
    q, k, v = (torch_cpu.tensor(random.normal(size=(2, 150, 2, 16)), "float32") for _ in range(3))
    y, lse = torch.ops.fusedops.attention(q, k, v, None, None)
    dropping = {"seed": torch.tensor(SEED), "dropout": 1e-300}
    again = torch.ops.fusedops.attention(q, k, v, None, None, **dropping)
    backward = torch.ops.fusedops.attention_backward(v, q, k, v, y, lse, None, None)
    backward_again = torch.ops.fusedops.attention_backward(v, q, k, v, y, lse, None, None, **dropping)
    for got, expected in zip((*again, *backward_again), (y, lse, *backward), strict=True):
        assert got.equal(expected)


@pytest.mark.parametrize(
    ("dropout", "expected"),
    [
        (1.0, "in [0, 1); got 1"),
        (-0.1, "in [0, 1); got -0.1"),
        (float("nan"), "in [0, 1); got nan"),
        ("a", "a number; got 'a'"),
    ],
    ids=str,
)
def test_errors_name_the_argument(any_backend, dropout, expected):
    x = any_backend.tensor(np.ones((2, 3, 4)), "float32")
    with pytest.raises(any_backend.errors, match=re.escape(f"fusedops.attention: dropout must be {expected}")):
        any_backend.call("attention", named(x, x, x), {"dropout": dropout, "seed": SEED})


@pytest.mark.frameworks("torch", "tf")
def test_derivatives_are_those_of_the_formula(any_backend, random):
    """First and second derivatives, and in PyTorch forward mode: those of dropout on the probabilities as a tensor."""
    tensors = {name: any_backend.tensor(random.normal(size=(2, 2, 7, 5)), "float64") for name in "qkv"}
    public, options = any_backend.functions, {"dropout": 0.4, "seed": SEED}

    def fused(q, k, v):
        return public.attention(q, k, v, causal=True, seq_dim=-2, **options)

    def formula(q, k, v):
        transposed = (
            k.transpose(-1, -2) if any_backend.framework == "torch" else any_backend.tf.linalg.matrix_transpose(k)
        )
        return public.dropout(public.softmax(q @ transposed, scale=5**-0.5, causal=True), 0.4, SEED) @ v

    def derivatives(function):
        if any_backend.framework == "torch":
            torch = any_backend.torch
            leaves = [x.clone().requires_grad_() for x in tensors.values()]
            first = torch.autograd.grad(function(*leaves).sin().sum(), leaves, create_graph=True)
            second = torch.autograd.grad(sum(g.sin().sum() for g in first), leaves)
            inputs = tuple(tensors.values())
            _, tangent = torch.func.jvp(function, inputs, tuple(x.cos() for x in inputs))
            return *first, *second, tangent
        tf, inputs = any_backend.tf, list(tensors.values())
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                total = tf.reduce_sum(tf.sin(function(*inputs)))
            first = inner.gradient(total, inputs)
            again = sum(tf.reduce_sum(tf.sin(g)) for g in first)
        return *first, *outer.gradient(again, inputs)

    for got, expected in zip(derivatives(fused), derivatives(formula), strict=True):
        np.testing.assert_allclose(any_backend.to_numpy(got), any_backend.to_numpy(expected), rtol=1e-10, atol=1e-11)
