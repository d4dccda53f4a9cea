"""Device, dtype and shape of outputs and gradients; numbers and tensors as scalars."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.checks import tuples
from tests.helpers.numerics import assert_same_bits, compute_dtype
from tests.helpers.specification import Sample
from tests.specifications import WITH_PARAMETERS, WITH_SCALARS, scalars


def test_device_dtype_and_shape(any_backend, spec, dtype, random):
    for sample in (spec.sample((3, 4, 5), random), *spec.more_samples(random)):
        inputs = any_backend.tensors(sample, dtype)
        outputs, gradients = any_backend.gradients(spec.name, inputs, sample.options, spec.differentiable(sample))
        exact = tuples(spec.reference(**sample.inputs, **sample.options))
        for name, output, expected in zip(spec.outputs, outputs, exact, strict=True):
            assert any_backend.device_of(output) == any_backend.device
            assert any_backend.dtype_of(output) == (
                compute_dtype(dtype) if name in spec.compute_dtype_outputs else dtype
            )
            assert tuple(output.shape) == np.shape(expected)
        for name, gradient in gradients.items():
            assert any_backend.device_of(gradient) == any_backend.device
            assert any_backend.dtype_of(gradient) == dtype
            assert tuple(gradient.shape) == np.shape(sample.inputs[name])


@pytest.mark.parametrize("spec", WITH_PARAMETERS, ids=str)
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_float32_parameters(any_backend, spec, narrow, random):
    """Their gradients are float32, and the result has x's dtype."""
    sample = spec.sample((3, 4, 5), random)
    inputs = any_backend.tensors(sample, narrow, spec)
    outputs, gradients = any_backend.gradients(spec.name, inputs, sample.options, spec.differentiable(sample))
    for name, output in zip(spec.outputs, outputs, strict=True):
        assert any_backend.dtype_of(output) == ("float32" if name in spec.compute_dtype_outputs else narrow)
    for name, gradient in gradients.items():
        assert any_backend.dtype_of(gradient) == ("float32" if name in spec.parameters else narrow)


@pytest.mark.parametrize("spec", WITH_SCALARS, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)], ids=str)
def test_a_parameter_of_one_element_keeps_its_shape(any_backend, spec, shape, random):
    sample = spec.sample((3, 4), random)
    names = scalars(spec)
    given = {name: value.reshape(shape) if name in names else value for name, value in sample.inputs.items()}
    inputs = any_backend.tensors(Sample(given), "float32")
    _, gradients = any_backend.gradients(spec.name, inputs, sample.options, tuple(names))
    assert [tuple(gradients[name].shape) for name in names] == [shape] * len(names)


@pytest.mark.parametrize("spec", WITH_SCALARS, ids=str)
def test_a_number_is_not_rounded_to_16_bits(any_backend, spec, random):
    """A number gives the bits of a float32 tensor of that number."""
    sample = spec.sample((33, 7), random)
    names = scalars(spec)
    third = {name: np.asarray(1 / 3) if name in names else value for name, value in sample.inputs.items()}
    as_tensor = any_backend.tensors(Sample(third), "bfloat16", spec)
    as_number = {name: 1 / 3 if name in names else value for name, value in as_tensor.items()}
    expected, got = (any_backend.call(spec.name, inputs, sample.options)[0] for inputs in (as_tensor, as_number))
    assert_same_bits(any_backend.to_numpy(got), any_backend.to_numpy(expected))


@pytest.mark.parametrize("spec", WITH_SCALARS, ids=str)
def test_a_number_keeps_all_bits_in_float64(any_backend, spec, random):
    sample = spec.sample((33, 7), random)
    names = scalars(spec)
    third = {name: np.asarray(1 / 3) if name in names else value for name, value in sample.inputs.items()}
    as_tensor = any_backend.tensors(Sample(third), "float64")
    as_number = {name: 1 / 3 if name in names else value for name, value in as_tensor.items()}
    expected, got = (any_backend.call(spec.name, inputs, sample.options)[0] for inputs in (as_tensor, as_number))
    assert_same_bits(any_backend.to_numpy(got), any_backend.to_numpy(expected))
