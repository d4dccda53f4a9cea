"""Rotary embedding: views read in place, and rows beyond 2^31 elements."""

from __future__ import annotations

import pytest

from tests.helpers.numerics import assert_same_bits
from tests.specifications.rope import call

PACKED = (2, 5, 3, 4, 32)  # batch, positions, q k v, heads, features


def assert_equal(backend, got, expected):
    assert_same_bits(backend.to_numpy(got), backend.to_numpy(expected))


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
def test_slices_of_a_packed_tensor(torch_backend, dtype, interleaved, random):
    """Positions before the heads and after them: the bits of a contiguous copy."""
    rope = torch_backend.functions.rope
    packed, cos, sin = torch_backend.tensors(call(PACKED, (5, 16), random), dtype).values()
    for x in packed.unbind(2):
        assert not x.is_contiguous()
        expected = rope(x.clone(memory_format=torch_backend.torch.contiguous_format), cos, sin, interleaved=interleaved)
        assert_equal(torch_backend, rope(x, cos, sin, interleaved=interleaved), expected)
        behind = rope(x.transpose(1, 2), cos, sin, seq_dim=-2, interleaved=interleaved)
        assert behind.is_contiguous()
        assert_equal(torch_backend, behind.transpose(1, 2), expected)


def test_a_rotation_keeps_lengths_and_turns_back(any_backend, random):
    sample = call((2, 7, 3, 64), (7, 32), random)
    inputs = any_backend.tensors(sample, "float64")
    y = any_backend.call("rope", inputs)[0]
    _, gradients = any_backend.gradients("rope", inputs, {}, ("x",), (y,))  # the gradient of a rotation is its inverse
    back, x = (any_backend.to_numpy(t) for t in (gradients["x"], inputs["x"]))
    assert abs(back - x).max() < 1e-14


@pytest.mark.parametrize("extra", [0, 1], ids=["aligned", "misaligned"])
def test_more_than_2_31_elements(torch_gpu, extra):
    """Every period of the result has the bits of the first, to the last position."""
    torch = torch_gpu.torch
    features, period = 128, 4096
    positions = 2**31 // features + 130
    angle = torch.rand(period, features // 2, device="cuda", dtype=torch.float32)
    small = torch.randn(period * features + extra, device="cuda").bfloat16()[extra:].view(period, 1, features)
    expected = torch_gpu.functions.rope(small, angle.cos(), angle.sin())
    repeats = -(-positions // period)
    large = torch.empty(positions * features + extra, device="cuda", dtype=torch.bfloat16)[extra:]
    large = large.view(positions, 1, features).copy_(small.repeat(repeats, 1, 1)[:positions])
    angles = (x.repeat(repeats, 1)[:positions] for x in (angle.cos(), angle.sin()))
    got = torch_gpu.functions.rope(large, *angles)
    for first in range(0, positions, period):
        piece = got[first : first + period]
        assert torch.equal(piece, expected[: len(piece)])
