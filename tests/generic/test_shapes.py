"""Any shape: empty, scalar, odd, of many dimensions, and around the sizes where kernels change their path."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis.extra.numpy import array_shapes

from tests.helpers.checks import check_backward, check_forward
from tests.helpers.numerics import LONGEST
from tests.helpers.specification import Sample

# Around vectors (4, 8), a warp (32), the CPU engine's blocks (1024), CUDA tiles (4096) and 16-bit counts (65536).
SIZES = (1, 2, 3, 7, 8, 9, 31, 33, 255, 257, 1023, 1024, 1025, 4095, 4097, 65535, 65537)
EMPTY = ((0,), (0, 5), (5, 0), (2, 0, 3), (0, 0))
MANY_DIMENSIONS = ((1,), (1, 1), (2, 3), (3, 1, 5), (2, 1, 3, 4), (2, 3, 1, 2, 5), (2, 1, 2, 3, 2, 4))


def check(backend, spec, shape, dtype, random):
    shape = (1,) * (spec.least_rank - len(shape)) + tuple(shape)
    sample = spec.sample(shape, random)
    inputs = backend.tensors(sample, dtype)
    check_forward(backend, spec, sample, inputs)
    check_backward(backend, spec, sample, inputs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sizes(any_backend, spec, dtype, random):
    for size in SIZES:
        check(any_backend, spec, (size,), dtype, random)
        if spec.least_rank > 0:
            check(any_backend, spec, (size, 3), dtype, random)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("shape", [(), *MANY_DIMENSIONS], ids=str)
def test_ranks(any_backend, spec, dtype, shape, random):
    check(any_backend, spec, shape, dtype, random)


@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_empty(any_backend, spec, shape, random):
    """Outputs are empty, and gradients of parameters are zero."""
    check(any_backend, spec, shape, "float32", random)
    sample = spec.sample((1,) * (spec.least_rank - len(shape)) + shape, random)
    inputs = any_backend.tensors(sample, "float32")
    _, gradients = any_backend.gradients(spec.name, inputs, sample.options, spec.differentiable(sample))
    arguments = any_backend.numpy(inputs, LONGEST)
    for name in set(spec.parameters) & set(gradients):
        got = any_backend.to_numpy(gradients[name])
        np.testing.assert_array_equal(got, np.zeros_like(arguments[name]))


def with_zero(sample, size):
    """The sample with 0 in place of every dimension of this size."""
    inputs = {
        name: np.zeros([0 if n == size else n for n in x.shape], x.dtype) if isinstance(x, np.ndarray) else x
        for name, x in sample.inputs.items()
    }
    return Sample(inputs, sample.options)


def test_each_dimension_may_be_zero(any_backend, spec, random):
    """Also features, heads and keys: the call has results and gradients of the right shapes, or raises an error."""
    for sample in (spec.sample((2, 3, 5, 8), random), *spec.more_samples(random)):
        for size in sorted({n for name in sample.tensors for n in np.shape(sample.inputs[name])}):
            empty = with_zero(sample, size)
            inputs, wanted = any_backend.tensors(empty, "float32"), spec.differentiable(empty)
            try:
                outputs, gradients = any_backend.gradients(spec.name, inputs, empty.options, wanted)
            except any_backend.errors as error:
                assert "fusedops." in str(error), error
                continue
            for name in wanted:
                gradient = any_backend.to_numpy(gradients[name])
                assert gradient.shape == np.shape(empty.inputs[name])
                assert not (gradient.any() and all(0 in y.shape for y in outputs))


@hypothesis.given(
    shape=array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=9), seed=hypothesis.strategies.integers(0, 99)
)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_random_shapes(any_backend, spec, shape, seed):
    check(any_backend, spec, shape, "float32", np.random.default_rng(seed))
