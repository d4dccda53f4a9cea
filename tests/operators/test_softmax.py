"""Softmax: masked elements are never read; fully masked rows; long rows, and more than 2^31 elements."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.checks import check_backward, check_forward
from tests.helpers.numerics import assert_same_bits
from tests.helpers.rows import LENGTHS, check
from tests.helpers.specification import Sample
from tests.specifications.softmax import SPECIFICATION


def softmax(backend, dtype, x, mask=None, **options):
    inputs = backend.tensors(Sample({"x": x} if mask is None else {"x": x, "mask": mask}), dtype)
    return backend.to_numpy(backend.call("softmax", inputs, options)[0])


def test_what_is_masked_does_not_matter(any_backend, dtype, random):
    for shape, of_mask in (((6, 72), (6, 72)), ((2, 6, 33), (1, 33)), ((2, 6, 33), (6, 1))):
        x, mask = random.normal(size=shape), random.random(size=of_mask) < 0.5
        wild = np.where(np.broadcast_to(mask, shape), x, random.choice([np.nan, np.inf, -np.inf], size=shape))
        expected = softmax(any_backend, dtype, x, mask)
        assert_same_bits(softmax(any_backend, dtype, wild, mask), expected)
        assert not expected[~np.broadcast_to(mask, shape)].any()


def test_what_causality_masks_does_not_matter(any_backend, dtype, random):
    for rows, columns in ((40, 64), (7, 33), (9, 4)):
        x = random.normal(size=(2, rows, columns))
        future = ~np.tri(rows, columns, columns - rows, dtype=bool)
        expected = softmax(any_backend, dtype, x, causal=True)
        assert_same_bits(softmax(any_backend, dtype, np.where(future, np.nan, x), causal=True), expected)
        assert not expected[:, future].any()


def test_masked_elements_of_a_nan_row_are_zero(any_backend, dtype):
    x, mask = (
        np.array([[np.nan, 1.0, 2.0], [-np.inf, 1.0, -np.inf]]),
        np.array([[True, False, True], [True, False, True]]),
    )
    got = softmax(any_backend, dtype, x, mask)
    assert np.isnan(got[:, [0, 2]].astype(float)).all()
    assert not got[:, 1].any()


@pytest.mark.parametrize("columns", LENGTHS)
def test_fully_masked_rows(any_backend, columns, dtype, random):
    """Results and gradients are zeros for any masked values."""
    x = random.standard_normal((4, columns))
    x[1], x[2, ::2] = np.nan, np.inf
    mask = np.ones((4, columns), bool)
    mask[1:3] = False
    sample = Sample({"x": x, "mask": mask})
    inputs = any_backend.tensors(sample, dtype)
    (y,), gradients = any_backend.gradients("softmax", inputs, {}, ("x",))
    for result in (y, gradients["x"]):
        np.testing.assert_array_equal(any_backend.to_numpy(result)[1:3].astype(float), 0)
    kept = Sample({"x": x[::3].copy(), "mask": mask[::3].copy()})
    check(any_backend, SPECIFICATION, kept, dtype)


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_float32_bias_beside_16_bits(any_backend, narrow, random):
    for sample in SPECIFICATION.with_bias(random):
        inputs = any_backend.tensors(sample, narrow, SPECIFICATION)
        check_forward(any_backend, SPECIFICATION, sample, inputs)
        check_backward(any_backend, SPECIFICATION, sample, inputs)


def test_more_rows_than_columns_of_a_causal_matrix(any_backend, dtype, random):
    """The first rows have no visible element."""
    sample = Sample({"x": random.standard_normal((2, 7, 3))}, {"causal": True})
    inputs = any_backend.tensors(sample, dtype)
    (y,), gradients = any_backend.gradients("softmax", inputs, sample.options, ("x",))
    for result in (y, gradients["x"]):
        np.testing.assert_array_equal(any_backend.to_numpy(result)[:, :4].astype(float), 0)
    np.testing.assert_array_equal(any_backend.to_numpy(y)[:, 4].astype(float), [[1, 0, 0]] * 2)
    check(any_backend, SPECIFICATION, sample, dtype)


@pytest.mark.parametrize("narrow", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [65_536, 262_144, 40_001], ids=str)
def test_long_rows_of_which_some_is_masked(any_backend, narrow, size, random):
    x, mask = random.normal(size=(3, size)), random.random(size=size) < 0.5
    check(any_backend, SPECIFICATION, Sample({"x": x}, {"causal": True}), narrow)
    check(any_backend, SPECIFICATION, Sample({"x": x, "mask": mask}), narrow)


@pytest.mark.parametrize("size", [20_000, 40_000], ids=str)
def test_many_long_rows_of_which_some_is_masked(any_gpu, dtype, size, random):
    """More rows than a GPU processes at once. Each has the bits that it has in a small batch, in any order."""
    x, mask = random.normal(size=(160, 2, size)), random.random(size=(160, 1, size)) < 0.5
    mask[::7], mask[::5, :, : size // 2] = False, False
    whole = random.random(size=(160, 1, 1)) < 0.5
    x[::3, 0, 5], x[1::3, 1, 6], x[2::9] = np.nan, np.inf, -np.inf
    for options, masks in (({"causal": True}, None), ({}, whole), ({}, mask)):
        batch = softmax(any_gpu, dtype, x, masks, **options)
        for first in range(0, 160, 16):
            some = slice(first, first + 16)
            few = softmax(any_gpu, dtype, x[some], masks if masks is None else masks[some], **options)
            assert_same_bits(batch[some], few)
    assert not batch[::7].any()
    assert not batch[::5, :, : size // 2].any()


def test_more_than_2_31_elements(torch_gpu):
    """Every row has the bits of the same row in a small tensor."""
    torch, softmax = torch_gpu.torch, torch_gpu.functions.softmax
    columns, period = 8192, 64
    rows = 2**31 // columns + 2 * period
    small = torch.randn(period, columns, device="cuda", dtype=torch.bfloat16)
    large = small.repeat(rows // period, 1)
    expected, got = softmax(small), softmax(large)
    for first in range(0, rows, period):
        assert torch.equal(got[first : first + period], expected)
    gradient = torch.ops.fusedops.softmax_backward(large, got, 1.0)
    assert torch.equal(gradient[-period:], torch.ops.fusedops.softmax_backward(small, expected, 1.0))
