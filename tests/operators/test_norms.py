"""The norms of unusual rows: means far from zero, sums that overflow, no eps, no variance."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.checks import tuples
from tests.helpers.numerics import assert_same_bits, reference_dtype
from tests.helpers.rows import check, named, rows, with_exact_sum, with_x
from tests.helpers.specification import Sample, pairwise
from tests.helpers.torch_layouts import misaligned

NORMS = ("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm")


@named("layer_norm", "add_layer_norm")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [33, 1000, 4097, 65_536])
def test_a_mean_far_from_zero(any_backend, spec, dtype, columns, random):
    """Mean 1e4 and variance 1e-2: a difference of mean squares would be noise, a mean rounded once is not."""
    sample = rows(spec, 5, columns, random)
    x = 1e4 + 0.1 * random.standard_normal((5, columns))
    sample = with_exact_sum(with_x(sample, x))
    inputs = any_backend.tensors(sample, dtype)
    wanted = spec.differentiable(sample)
    outputs, gradients = any_backend.gradients(spec.name, inputs, sample.options, wanted)
    longer = reference_dtype(dtype)
    upstream = [any_backend.to_numpy(dy).astype(longer) for dy in any_backend.upstream(outputs)]
    arguments = {**any_backend.numpy(inputs, longer), **sample.options}
    exact = spec.gradients(*upstream, **arguments)
    scale = spec.gradient_magnitude(*upstream, **arguments)
    # The mean is off by some half ulps of 1e4, so the normalized values by as many of 1e4 / 0.1.
    off = pairwise(columns) * np.finfo(dtype).eps / 2 * 1e5
    expected = tuples(spec.reference(**arguments))[0]
    np.testing.assert_array_less(abs(any_backend.to_numpy(outputs[0]) - expected), off * (1 + abs(expected)))
    for name in wanted:
        error = abs(any_backend.to_numpy(gradients[name]) - exact[name])
        np.testing.assert_array_less(error, 4 * off * (scale[name] + 1e-30), name)


@named("add_rms_norm", "add_layer_norm")
def test_the_norm_of_a_sum(any_backend, spec, dtype, random):
    """x + residual and its norm have the bits of two operators in sequence, also if the sum overflows."""
    sample = rows(spec, 6, 33, random)
    sample.inputs["x"][1, 3], sample.inputs["residual"][1, 3] = np.finfo(np.float16).max, np.finfo(np.float16).max
    inputs = any_backend.tensors(sample, dtype)
    y, s = any_backend.call(spec.name, inputs)
    (sum_,) = any_backend.call("add", {"x": inputs["x"], "y": inputs.pop("residual")})
    (norm,) = any_backend.call(spec.name.removeprefix("add_"), {**inputs, "x": sum_})
    assert_same_bits(any_backend.to_numpy(s), any_backend.to_numpy(sum_))
    assert_same_bits(any_backend.to_numpy(y), any_backend.to_numpy(norm))


@named(*NORMS)
def test_without_eps(any_backend, spec, dtype, random):
    """A row of zeros has no norm; the other rows are unaffected."""
    sample = rows(spec, 6, 33, random)
    check(any_backend, spec, with_x(sample, sample.inputs["x"], eps=0.0), dtype)
    zeros = {name: np.zeros_like(value) if np.ndim(value) == 2 else value for name, value in sample.inputs.items()}
    y = any_backend.call(spec.name, any_backend.tensors(Sample(zeros), dtype), {"eps": 0.0})[0]
    assert np.isnan(any_backend.to_numpy(y).astype(float)).all()


@named(*NORMS)
@pytest.mark.parametrize("columns", [1, 33, 4097])
def test_rows_of_one_value(any_backend, spec, columns, dtype, random):
    """Without variance, layer_norm divides by the root of eps alone."""
    sample = rows(spec, 4, columns, random)
    x = np.repeat([[1.0], [-3.0], [0.5], [1024.0]], columns, 1)
    check(any_backend, spec, with_exact_sum(with_x(sample, x)), dtype)


@named("layer_norm", "add_layer_norm")
@pytest.mark.parametrize("columns", [16, 1024])
def test_zeros_keep_their_sign_in_any_layout(torch_backend, spec, columns, dtype, random):
    """Without a bias nothing is added to a normalized zero, at any alignment of the weight."""
    sample = rows(spec, 3, columns, random)
    sample = with_exact_sum(with_x(sample, np.repeat([[1.0], [-3.0], [0.5]], columns, 1)))
    inputs = torch_backend.tensors(Sample({**sample.inputs, "bias": None}), dtype)
    y = torch_backend.call(spec.name, inputs)[0]
    moved = torch_backend.call(spec.name, {**inputs, "weight": misaligned(inputs["weight"])})[0]
    assert_same_bits(torch_backend.to_numpy(moved), torch_backend.to_numpy(y))
    assert not y.any() and torch_backend.torch.signbit(y).any()


@named("rms_norm", "add_rms_norm")
def test_an_offset_of_minus_zero(any_backend, spec, dtype, random):
    """-0 is not the default: added to a weight of -0 it gives -0, while an offset of 0 gives 0."""
    sample = rows(spec, 3, 16, random)
    inputs = {name: abs(value) for name, value in sample.inputs.items()}
    inputs["weight"] = np.full(16, -0.0)
    y = any_backend.call(spec.name, any_backend.tensors(Sample(inputs), dtype), {"weight_offset": -0.0})[0]
    assert np.signbit(any_backend.to_numpy(y).astype(float)).all()
