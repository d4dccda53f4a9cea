"""Checks shared by several suites: one call against the reference, and all bits against other bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from tests.helpers.frameworks import Backend
from tests.helpers.numerics import assert_accurate, assert_same_bits, numpy_dtype, reference_dtype
from tests.helpers.specification import Sample, Specification


def tuples(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def dtype_of(backend: Backend, spec: Specification, inputs: dict[str, Any]) -> str:
    """The dtype of a call's inputs that are not parameters."""
    tensors = {name: x for name, x in inputs.items() if backend.is_tensor(x)}
    return backend.dtype_of(next(x for name, x in tensors.items() if name not in spec.parameters))


def storage_roundings(
    backend: Backend, spec: Specification, inputs: dict[str, Any], arguments: dict[str, Any]
) -> Callable[[str], tuple[Any, str]]:
    """The number of intermediate roundings of each result, and their dtype."""
    counts, dtype = spec.storage_roundings(**arguments), dtype_of(backend, spec, inputs)
    return lambda name: (counts.get(name, 0), dtype)


def check_forward(
    backend: Backend,
    spec: Specification,
    sample: Sample,
    inputs: dict[str, Any],
    outputs: tuple[Any, ...] | None = None,
) -> None:
    outputs = outputs or backend.call(spec.name, inputs, sample.options)
    longer = reference_dtype(dtype_of(backend, spec, inputs))
    arguments = {**backend.numpy(inputs, longer), **sample.options}
    roundings, storage = spec.roundings(**arguments), storage_roundings(backend, spec, inputs, arguments)
    expected = zip(spec.outputs, tuples(spec.reference(**arguments)), tuples(spec.magnitude(**arguments)), strict=True)
    for output, (name, exact, magnitude) in zip(outputs, expected, strict=True):
        label = f"{sample}: {name}"
        assert_accurate(backend.to_numpy(output), exact, magnitude, roundings[name], label, storage(name))


def check_backward(
    backend: Backend,
    spec: Specification,
    sample: Sample,
    inputs: dict[str, Any],
    results: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
) -> None:
    """`results`: outputs, and the gradients for `backend.upstream(outputs)`; those of the public function if None."""
    wanted = spec.differentiable(sample)
    outputs, gradients = results or backend.gradients(spec.name, inputs, sample.options, wanted)
    assert tuple(gradients) == wanted
    longer = reference_dtype(dtype_of(backend, spec, inputs))
    upstream = [backend.to_numpy(dy).astype(longer) for dy in backend.upstream(outputs)]
    arguments = {**backend.numpy(inputs, longer), **sample.options}
    roundings, storage = spec.roundings(**arguments), storage_roundings(backend, spec, inputs, arguments)
    exact = spec.gradients(*upstream, **arguments)
    magnitude = spec.gradient_magnitude(*upstream, **arguments)
    for name, gradient in gradients.items():
        assert backend.dtype_of(gradient) == backend.dtype_of(inputs[name])
        label, key = f"{sample}: gradient of {name}", f"d{name}"
        got = backend.to_numpy(gradient)
        assert_accurate(got, exact[name], magnitude[name], roundings[key], label, storage(key))


# Large enough that every operator splits its work, and odd, so that the pieces differ.
SHAPE = (37, 4099)


def results(backend: Backend, spec: Specification, dtype: str) -> Iterator[tuple[str, np.ndarray]]:
    """Outputs and gradients by name, of a few samples."""
    random = np.random.default_rng(7)
    for sample in (spec.sample(SHAPE, random), *spec.more_samples(random)):
        inputs = backend.tensors(sample, dtype)
        outputs, gradients = backend.gradients(spec.name, inputs, sample.options, spec.differentiable(sample))
        for name, output in zip(spec.outputs, outputs, strict=True):
            yield f"{spec.name} {sample}: {name}", backend.to_numpy(output)
        for name, gradient in gradients.items():
            yield f"{spec.name} {sample}: d{name}", backend.to_numpy(gradient)


def assert_same(got: Iterable[tuple[str, np.ndarray]], expected: Iterable[tuple[str, np.ndarray]]) -> None:
    for (label, left), (_, right) in zip(got, expected, strict=True):
        assert_same_bits(left, right, label)


def with_every_pattern(
    backend: Backend, spec: Specification, dtype: str, random: np.random.Generator
) -> tuple[Sample, dict[str, Any]]:
    """Every 16-bit pattern, including every NaN and subnormal number, in the first large input or in the first column
    of its rows."""
    patterns = np.arange(2**16, dtype=np.uint16).view(numpy_dtype(dtype))
    sample = spec.sample(patterns.shape + (1,) * (spec.least_rank - 2) + (3,) * (spec.least_rank > 0), random)
    inputs = backend.tensors(sample, dtype)
    name = next(name for name in sample.tensors if sample.inputs[name].size >= patterns.size)
    values = backend.to_numpy(inputs[name]).copy()
    values.reshape(patterns.size, -1)[:, 0] = patterns
    inputs[name] = backend.from_numpy(values)
    return sample, inputs


def small_samples(spec: Specification, random) -> list[Sample]:
    samples = (spec.sample((2, 3), random), spec.sample((2, 2, 3), random), *spec.more_samples(random))
    sizes = ([sample.inputs[name].size for name in sample.tensors] for sample in samples)
    return [sample for sample, size in zip(samples, sizes, strict=True) if min(size) > 0 and sum(size) <= 130]
