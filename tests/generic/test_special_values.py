"""NaN, infinities, signed zeros, subnormal and largest numbers give the results of the formula in the compute dtype.

A compiler may fuse a product and a sum, which skips an overflow or underflow between them. Hence two references: the
formula with every step rounded, and the formula rounded once. If they agree, so must the kernel.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.helpers.checks import check_forward, storage_roundings, tuples, with_every_pattern
from tests.helpers.frameworks import Backend
from tests.helpers.numerics import LONGEST, bits, compute_dtype, rounded, special_values, tolerance, ulp
from tests.helpers.specification import Sample, Specification
from tests.specifications import WITH_SCALARS, scalars


def kind(values: np.ndarray) -> np.ndarray:
    """NaN: 5. Infinities: 4 and -4. Zeros: 1 and -1, by their sign. Other numbers: 2 and -2."""
    sizes = np.select([np.isnan(values), np.isinf(values), values == 0], [5, 4, 1], 2)
    return np.where(np.isnan(values), 5, np.where(np.signbit(values), -sizes, sizes))


def check(
    got: np.ndarray, stepwise: np.ndarray, once: np.ndarray, limit: np.ndarray, label: str, stored: Any = 0
) -> None:
    """Each number has the kind of one of the two references, and is within the limit of it. `stored`: the number of
    times that an intermediate value is rounded to the dtype; differences of such values may cancel."""
    wide = got.astype(LONGEST)
    good = np.zeros(got.shape, bool)
    largest = LONGEST(ml_dtypes.finfo(got.dtype).max)
    beyond = largest + ulp(largest, got.dtype.name) / 2  # rounds to an infinity
    with np.errstate(all="ignore"):
        limit = np.where(np.isfinite(limit), limit, 0)
        for reference in (stepwise, once):
            unrounded = np.asarray(reference, LONGEST)
            expected = rounded(np.asarray(reference), got.dtype.name).astype(LONGEST)
            # Ordinary numbers may have any sign within the limit: a sum that cancels may be on either side of zero.
            ordinary = (abs(kind(wide)) == 2) & (abs(kind(expected)) == 2)
            same_kind = (kind(wide) == kind(expected)) | ordinary
            close = (np.abs(wide - expected) <= limit) | (np.abs(wide - unrounded) <= limit)
            underflow = (expected == 0) & (np.signbit(wide) == np.signbit(expected))  # the limit is a few subnormals
            overflow = np.isinf(wide) & (np.sign(wide) == np.sign(unrounded)) & (np.abs(unrounded) + limit >= beyond)
            cancels = np.any(stored) & (abs(kind(wide)) <= 2) & (abs(kind(expected)) <= 2)
            good |= same_kind & (close | ~np.isfinite(expected)) | close & (underflow | cancels) | overflow
        # Several overflows of intermediate values give an infinity or NaN, depending on their order.
        good |= np.isnan(stepwise) & np.isfinite(np.asarray(once)) & np.isinf(wide)
    if not good.all():
        at = tuple(map(int, np.unravel_index(np.argmin(good), good.shape)))
        raise AssertionError(
            f"{label}: {(~good).sum()} of {good.size} wrong; at {at}: got {got[at]!r} (bits {bits(got)[at]:#x}), "
            f"expected {stepwise[at]!r} or {once[at]!r}"
        )


def evaluations(function: Any, backend: Backend, dtype: str, inputs: dict[str, Any], options: Any, upstream: Any = ()):
    for computed in (compute_dtype(dtype), LONGEST):
        arguments = {**backend.numpy(inputs, computed), **options}
        with np.errstate(all="ignore"):
            yield function(*(dy.astype(computed) for dy in upstream), **arguments)


def samples(spec: Specification, dtype: str, random: np.random.Generator) -> list[Sample]:
    return list(spec.special(special_values(dtype), random))


def check_outputs(backend: Backend, spec: Specification, sample: Sample, inputs: dict[str, Any], dtype: str) -> None:
    outputs = backend.call(spec.name, inputs, sample.options)
    stepwise, once = evaluations(spec.reference, backend, dtype, inputs, sample.options)
    _, magnitude = evaluations(spec.magnitude, backend, dtype, inputs, sample.options)
    arguments = {**backend.numpy(inputs, LONGEST), **sample.options}
    with np.errstate(all="ignore"):
        roundings, storage = spec.roundings(**arguments), storage_roundings(backend, spec, inputs, arguments)
    expected = zip(spec.outputs, tuples(stepwise), tuples(once), tuples(magnitude), strict=True)
    for output, (name, *references, size) in zip(outputs, expected, strict=True):
        with np.errstate(all="ignore"):
            limit = tolerance(references[1], size, roundings[name], backend.dtype_of(output), storage(name))
        check(backend.to_numpy(output), *references, limit, f"{sample}: {name}", storage(name)[0])


def test_forward(reference_backend, spec, dtype, random):
    for sample in samples(spec, dtype, random):
        check_outputs(reference_backend, spec, sample, reference_backend.tensors(sample, dtype), dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_pattern_of_16_bits(reference_backend, spec, dtype, random):
    sample, inputs = with_every_pattern(reference_backend, spec, dtype, random)
    with np.errstate(all="ignore"):
        check_outputs(reference_backend, spec, sample, inputs, dtype)


@pytest.mark.parametrize("spec", WITH_SCALARS, ids=str)
@pytest.mark.parametrize("pattern", [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000], ids=hex)
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_every_nan_survives_rounding(any_backend, spec, pattern, narrow, random):
    """The bits of such a float32 NaN would round up to infinity or zero."""
    sample = spec.sample((40,), random)
    inputs = any_backend.tensors(sample, narrow)
    for name in scalars(spec):
        inputs[name] = any_backend.from_numpy(np.array(pattern, np.uint32).view(np.float32))
    for output in any_backend.call(spec.name, inputs, sample.options):
        assert np.isnan(any_backend.to_numpy(output).astype(np.float32)).all()


def test_backward(reference_backend, spec, dtype, random):
    for sample in samples(spec, dtype, random):
        inputs = reference_backend.tensors(sample, dtype)
        outputs, gradients = reference_backend.gradients(spec.name, inputs, sample.options, spec.differentiable(sample))
        upstream = [reference_backend.to_numpy(dy) for dy in reference_backend.upstream(outputs)]
        parts = (reference_backend, dtype, inputs, sample.options, upstream)
        stepwise, once = evaluations(spec.gradients, *parts)
        _, magnitude = evaluations(spec.gradient_magnitude, *parts)
        arguments = {**reference_backend.numpy(inputs, LONGEST), **sample.options}
        with np.errstate(all="ignore"):
            roundings, storage = (
                spec.roundings(**arguments),
                storage_roundings(reference_backend, spec, inputs, arguments),
            )
        for name, gradient in gradients.items():
            with np.errstate(all="ignore"):
                key = f"d{name}"
                limit = tolerance(once[name], magnitude[name], roundings[key], dtype, storage(key))
            check(
                reference_backend.to_numpy(gradient),
                stepwise[name],
                once[name],
                limit,
                f"{sample}: d{name}",
                storage(key)[0],
            )


def test_overflow_to_infinity_in_16_bits(any_backend, spec, random):
    """The kernel does not saturate."""
    sample = spec.sample((4, 4), random)
    largest = {
        name: np.full_like(x, 65504.0) if name in spec.differentiable(sample) else x
        for name, x in sample.inputs.items()
    }
    if "residual" in largest:  # the sum would be stored as infinity, which hides the result
        largest["residual"] = np.zeros_like(largest["residual"])
    sample = Sample(largest, sample.options)
    check_forward(any_backend, spec, sample, any_backend.tensors(sample, "float16"))
