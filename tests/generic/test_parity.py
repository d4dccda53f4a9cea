"""All frameworks give the same bits on the same kind of device, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest

from tests.generic.test_reference import samples
from tests.helpers.checks import SHAPE, with_every_pattern
from tests.helpers.numerics import assert_same_bits, special_values
from tests.helpers.specification import Sample
from tests.specifications import WITH_PARAMETERS


def assert_agreement(backends, spec, sample, inputs_of):
    """Outputs and gradients agree; `inputs_of` makes a backend's inputs."""
    found = []
    for backend in backends:
        wanted = spec.differentiable(sample)
        outputs, gradients = backend.gradients(spec.name, inputs_of(backend), sample.options, wanted)
        found.append([*map(backend.to_numpy, outputs), *map(backend.to_numpy, gradients.values())])
    for left, right in zip(*found, strict=True):
        assert_same_bits(right, left, str(sample))


def test_same_bits(both_backends, spec, dtype, random):
    for sample in (spec.sample(SHAPE, random), *samples(spec, random)):
        assert_agreement(both_backends, spec, sample, lambda backend, sample=sample: backend.tensors(sample, dtype))


def test_same_bits_of_special_values(both_backends, spec, dtype, random):
    """Frameworks may treat subnormal numbers differently around a kernel, but not within it."""
    for sample in spec.special(special_values(dtype), random):
        assert_agreement(both_backends, spec, sample, lambda backend, sample=sample: backend.tensors(sample, dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_same_bits_of_every_pattern(both_backends, spec, dtype):
    found = []
    for backend in both_backends:
        sample, inputs = with_every_pattern(backend, spec, dtype, np.random.default_rng(0))
        found.append(map(backend.to_numpy, backend.call(spec.name, inputs, sample.options)))
    for left, right in zip(*found, strict=True):
        assert_same_bits(right, left)


@pytest.mark.parametrize("spec", WITH_PARAMETERS, ids=str)
def test_same_bits_with_float32_parameters(both_backends, spec, random):
    for sample in (spec.sample((33, 65), random), *spec.more_samples(random)):
        inputs_of = lambda backend, sample=sample: backend.tensors(sample, "bfloat16", spec)  # noqa: E731
        assert_agreement(both_backends, spec, sample, inputs_of)


def test_same_bits_compiled(both_backends, spec, random):
    """torch.compile, tf.function and jax.jit run the same kernels as eager code."""
    sample: Sample = spec.sample((33, 65), random)
    names = sample.tensors
    found: list[list[np.ndarray]] = []
    for backend in both_backends:
        inputs = backend.tensors(sample, "float32")

        def function(*tensors, backend=backend, inputs=inputs):
            return backend.call(spec.name, {**inputs, **dict(zip(names, tensors, strict=True))}, sample.options)

        tensors = [inputs[name] for name in names]
        found += [[*map(backend.to_numpy, f(*tensors))] for f in (function, backend.traced(function))]
    for others in found[1:]:
        for other, output in zip(others, found[0], strict=True):
            assert_same_bits(other, output)
