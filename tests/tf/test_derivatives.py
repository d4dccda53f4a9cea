"""TensorFlow: first and second derivatives, reverse and forward mode, against numeric ones in float64."""

from __future__ import annotations

import functools
import gc

import numpy as np
import pytest

from tests.helpers.checks import small_samples
from tests.helpers.numerics import assert_same_bits
from tests.helpers.tf_functions import flat, function_and_tensors, gradient_of, jvp, weighted
from tests.specifications import WITH_ROWS


def assert_numeric(tf, function, tensors):
    """Every element of the Jacobian, in a graph, whose many calls are fast. Eager code must have the same gradients."""

    def value_and_gradients(tensors, upstream):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = function(*tensors)
        return y, tape.gradient(y, tensors, upstream)

    traced = tf.function(value_and_gradients)
    units = tf.eye(function(*tensors).shape[0], dtype=tf.float64)
    rows = [traced(tensors, unit)[1] for unit in units]
    upstream = tf.sin(1.0 + tf.range(len(units), dtype=tf.float64))
    for eager, graph in zip(
        tf.nest.flatten(value_and_gradients(tensors, upstream)), tf.nest.flatten(traced(tensors, upstream)), strict=True
    ):
        np.testing.assert_allclose(eager, graph, rtol=1e-12, atol=1e-12)
    for i, x in enumerate(tensors):
        shifts = 1e-5 * np.eye(x.shape.num_elements()).reshape(-1, *x.shape)
        ahead, behind = (
            [traced([*tensors[:i], x + sign * shift, *tensors[i + 1 :]], upstream)[0] for shift in shifts]
            for sign in (1, -1)
        )
        numeric = (np.stack(ahead) - np.stack(behind)) / 2e-5
        theoretical = np.stack([np.ravel(row[i]) for row in rows])
        np.testing.assert_allclose(theoretical, numeric.T, rtol=1e-6, atol=1e-6)


def test_first_order(tf_backend, spec, random):
    for sample in small_samples(spec, random)[:3]:  # the gradients of all options are compared with PyTorch's bits
        function, tensors = function_and_tensors(tf_backend, spec, sample)
        assert_numeric(tf_backend.tf, flat(tf_backend.tf, function), tensors)


def test_second_order(tf_backend, spec, random):
    tf = tf_backend.tf
    for sample in small_samples(spec, random)[:4]:
        function, tensors = function_and_tensors(tf_backend, spec, sample)

        def gradient(*tensors, function=function):
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                total = weighted(tf, function(*tensors))
            return tf.concat([tf.reshape(g, [-1]) for g in tape.gradient(total, tensors)], 0)

        assert_numeric(tf, gradient, tensors)


def test_forward_accumulator(tf_backend, spec, random):
    """Jacobian times vector: the numeric derivative along the vector, eagerly and in a graph."""
    tf = tf_backend.tf
    for sample in small_samples(spec, random)[:6]:
        function, tensors = function_and_tensors(tf_backend, spec, sample)
        tangents = [tf.constant(random.normal(size=x.shape)) for x in tensors]

        derivative = functools.partial(jvp, tf, function)
        step = 1e-5
        ahead, behind = (function(*(x + s * t for x, t in zip(tensors, tangents, strict=True))) for s in (step, -step))
        numeric = tf.nest.map_structure(lambda y, z, step=step: (y - z) / (2 * step), ahead, behind)
        for compute in (derivative, tf.function(derivative)):
            tf.nest.map_structure(
                lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6),
                compute(tensors, tangents),
                numeric,
            )


def test_unknown_ranks(tf_backend, spec, random):
    """Second and forward derivatives in a graph that does not know the ranks, as a signature may ask for and as forward
    mode itself traces an operator that it has met with many shapes: those of eager code."""
    tf = tf_backend.tf
    for sample in small_samples(spec, random)[:6]:
        function, tensors = function_and_tensors(tf_backend, spec, sample)
        tangents = [tf.constant(random.normal(size=x.shape)) for x in tensors]
        first = functools.partial(gradient_of, tf, lambda xs, function=function: function(*xs))
        for way in (
            lambda *xs, first=first: gradient_of(tf, first, xs),
            lambda *xs, function=function, tangents=tangents: jvp(tf, function, list(xs), tangents),
        ):
            graph = tf.function(way, input_signature=[tf.TensorSpec(None, x.dtype) for x in tensors])
            for got, expected in zip(tf.nest.flatten(graph(*tensors)), tf.nest.flatten(way(*tensors)), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_forward_over_reverse(tf_backend, spec, random):
    """The Hessian times a vector, in both orders of modes."""
    tf = tf_backend.tf
    function, tensors = function_and_tensors(tf_backend, spec, spec.sample((2, 3), random))
    tangents = [tf.constant(random.normal(size=x.shape)) for x in tensors]

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            total = weighted(tf, function(*tensors))
        return tape.gradient(total, tensors)

    with tf.autodiff.ForwardAccumulator(tensors, tangents) as accumulator:
        gradients = gradient()
    forward = accumulator.jvp(gradients)
    with tf.GradientTape() as outer:
        outer.watch(tensors)
        product = tf.add_n([tf.reduce_sum(g * t) for g, t in zip(gradient(), tangents, strict=True)])
    for got, expected in zip(forward, outer.gradient(product, tensors), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("spec", [spec for spec in WITH_ROWS if spec.least_rank], ids=str)
def test_many_rows(tf_backend, spec, random):
    """First, second and forward derivatives equal those of a graph, up to the order of sums over the rows, on which the
    second derivative of every element depends."""
    tf = tf_backend.tf
    rows = 10_007
    function, tensors = function_and_tensors(
        tf_backend, spec, spec.sample((rows, *(1,) * (spec.least_rank - 2), 4), random)
    )
    tangents = [tf.constant(random.normal(size=x.shape)) for x in tensors]

    def first(tensors):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(tensors)
            total = weighted(tf, function(*tensors))
        return [tape.gradient(total, tensors), tape.gradient(total, tensors[0])]

    second = functools.partial(gradient_of, tf, first)
    forward = functools.partial(jvp, tf, flat(tf, function), tangents=tangents)

    for way in (first, second, forward):
        for got, expected in zip(
            tf.nest.flatten(way(tensors)), tf.nest.flatten(tf.function(way)(tensors)), strict=True
        ):
            largest = np.abs(expected).max()
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=rows * np.finfo(np.float64).eps * largest)


def test_jacobian(tf_backend, spec, random):
    """Vectorized by TensorFlow, and as a loop."""
    tf = tf_backend.tf
    function, tensors = function_and_tensors(tf_backend, spec, spec.sample((2, 3), random))
    function = flat(tf, function)
    found = []
    for vectorized in (True, False):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(tensors)
            outputs = function(*tensors)
        found.append(tape.jacobian(outputs, tensors, experimental_use_pfor=vectorized))
    for fast, slow in zip(*found, strict=True):
        np.testing.assert_allclose(fast, slow, rtol=1e-12, atol=1e-12)
    numeric = tf.test.compute_gradient(function, tensors, delta=1e-5)[1]
    for slow, expected in zip(found[1], numeric, strict=True):
        np.testing.assert_allclose(np.reshape(slow, expected.shape), expected, rtol=1e-6, atol=1e-6)


def test_persistent_and_nested_tapes(tf_backend, spec, random):
    tf = tf_backend.tf
    function, tensors = function_and_tensors(tf_backend, spec, spec.sample((2, 3), random))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(tensors)
        total = weighted(tf, function(*tensors))
    once, twice = (tape.gradient(total, tensors) for _ in range(2))
    with tf.GradientTape() as outer:
        outer.watch(tensors)
        with tf.GradientTape() as inner:
            inner.watch(tensors)
            total = weighted(tf, function(*tensors))
        nested = inner.gradient(total, tensors)
        outside = weighted(tf, tuple(nested))
    assert all(g is not None for g in outer.gradient(outside, tensors))
    for first, *others in zip(once, twice, nested, strict=True):
        assert all(np.array_equal(first, other) for other in others)


def test_variables(tf_backend, spec, random):
    """A tape watches them automatically, and their gradients have their dtype."""
    tf = tf_backend.tf
    for dtype in ("float32", "bfloat16"):
        sample = spec.sample((3, 5), random)
        inputs = tf_backend.tensors(sample, dtype)
        expected, gradients = tf_backend.gradients(spec.name, inputs, sample.options, spec.differentiable(sample))
        variables = {name: tf.Variable(inputs[name]) for name in spec.differentiable(sample)}
        with tf.GradientTape() as tape:
            outputs = tf_backend.call(spec.name, {**inputs, **variables}, sample.options)
        upstream = tf_backend.upstream(expected)
        found = tape.gradient(outputs, variables, output_gradients=upstream)
        for got, output in zip(outputs, expected, strict=True):
            assert_same_bits(got.numpy(), output.numpy())
        for name, gradient in gradients.items():
            assert found[name].dtype == variables[name].dtype
            assert_same_bits(tf_backend.to_numpy(found[name]), tf_backend.to_numpy(gradient), name)


def test_second_order_of_mixed_dtypes(tf_backend, spec, random):
    """bfloat16 inputs with float32 parameters: close to float64's results for the same numbers, each in its own
    dtype."""
    tf = tf_backend.tf
    sample = spec.sample((3, 5), random)
    narrow = tf_backend.tensors(sample, "bfloat16", spec)
    wide = {name: tf.cast(x, tf.float64) if name in sample.floating else x for name, x in narrow.items()}
    found = []
    for inputs in (narrow, wide):
        tensors = [inputs[name] for name in spec.differentiable(sample)]
        with tf.GradientTape() as outer:
            outer.watch(tensors)
            with tf.GradientTape() as inner:
                inner.watch(tensors)
                outputs = tf_backend.call(spec.name, inputs, sample.options)
                total = tf.add_n([tf.cast(tf.reduce_sum(y**2), tf.float64) for y in outputs])
            total = tf.add_n([tf.cast(tf.reduce_sum(g**2), tf.float64) for g in inner.gradient(total, tensors)])
        found.append(outer.gradient(total, tensors))
    for name, got, expected in zip(spec.differentiable(sample), *found, strict=True):
        x = narrow[name]
        assert (got.dtype, got.shape) == (x.dtype, x.shape)
        # A dozen roundings of 2^-9, relative to the largest element: sums cancel.
        limit = 12 * 2**-9 * np.abs(expected).max() + 1e-9
        np.testing.assert_allclose(tf.cast(got, tf.float64), expected, rtol=0, atol=limit)


def test_gradients_are_freed(tf_cpu, spec, random):
    """Also those of two equal sources, which tf.add leaks."""
    tf = tf_cpu.tf
    sample = spec.sample((2, 3, 4), random)
    inputs, wanted = tf_cpu.tensors(sample, "float32"), spec.differentiable(sample)

    def tensors() -> int:
        tf_cpu.gradients(spec.name, inputs, sample.options, wanted)
        gc.collect()
        return sum(issubclass(type(x), tf.Tensor) for x in gc.get_objects())

    tensors()
    assert tensors() == tensors()
