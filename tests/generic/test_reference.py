"""Values and gradients against the reference, within a tolerance derived from the dtype and the length of the sums."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.checks import check_backward, check_forward, tuples
from tests.helpers.numerics import LONGEST, assert_same_bits
from tests.helpers.specification import Sample, Specification
from tests.specifications import WITH_PARAMETERS

SHAPE = (3, 5, 37)


def samples(spec: Specification, random: np.random.Generator) -> list[Sample]:
    return [spec.sample(SHAPE, random), spec.sample((130, 1025), random), *spec.more_samples(random)]


def test_forward(reference_backend, spec, dtype, random):
    for sample in samples(spec, random):
        check_forward(reference_backend, spec, sample, reference_backend.tensors(sample, dtype))


def test_backward(reference_backend, spec, dtype, random):
    for sample in samples(spec, random):
        check_backward(reference_backend, spec, sample, reference_backend.tensors(sample, dtype))


@pytest.mark.parametrize("spec", WITH_PARAMETERS, ids=str)
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_float32_parameters_beside_16_bits(any_backend, spec, narrow, random):
    for sample in samples(spec, random):
        inputs = any_backend.tensors(sample, narrow, spec)
        check_forward(any_backend, spec, sample, inputs)
        check_backward(any_backend, spec, sample, inputs)


def test_only_the_gradients_asked_for(any_backend, spec, random):
    """Each gradient has the same bits alone as with the others, though another path may compute it."""
    for sample in (spec.sample(SHAPE, random), *spec.more_samples(random)):
        inputs = any_backend.tensors(sample, "float32")
        _, expected = any_backend.gradients(spec.name, inputs, sample.options, spec.differentiable(sample))
        for name in spec.differentiable(sample):
            _, got = any_backend.gradients(spec.name, inputs, sample.options, (name,))
            assert_same_bits(any_backend.to_numpy(got[name]), any_backend.to_numpy(expected[name]), f"{sample}: {name}")


def test_the_gradient_formula_is_the_derivative(spec, random):
    """The specification's gradients are the slopes of its own reference, by central differences."""
    for sample in (spec.sample((2, 3), random), *spec.more_samples(random)):
        arguments = {
            name: value.astype(LONGEST) if name in sample.floating else value for name, value in sample.inputs.items()
        }
        outputs = tuples(spec.reference(**arguments, **sample.options))
        upstream = [np.asarray(random.normal(size=np.shape(y)), LONGEST) for y in outputs]
        gradients = spec.gradients(*upstream, **arguments, **sample.options)
        for name in spec.differentiable(sample):
            direction = np.asarray(random.normal(size=arguments[name].shape), LONGEST)
            step = LONGEST(1e-5)

            def projected(shift, name=name, direction=direction, upstream=upstream, arguments=arguments, sample=sample):
                moved = {**arguments, name: arguments[name] + shift * direction}
                ys = tuples(spec.reference(**moved, **sample.options))
                return sum(np.sum(dy[np.isfinite(y)] * y[np.isfinite(y)]) for dy, y in zip(upstream, ys, strict=True))

            slope = (projected(step) - projected(-step)) / (2 * step)
            np.testing.assert_allclose(float(np.sum(gradients[name] * direction)), float(slope), rtol=1e-6, atol=1e-6)
