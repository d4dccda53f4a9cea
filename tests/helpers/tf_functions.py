"""TensorFlow: specifications as functions of tensors, and their values, gradients and tangents."""

from __future__ import annotations

from tests.helpers.calls import function_of
from tests.helpers.numerics import assert_same_bits


def tensor_function(backend, spec, sample, dtype="float32"):
    """A function of all tensors, and the tensors."""
    inputs = backend.tensors(sample, dtype)
    names = sample.tensors
    return function_of(backend, spec, sample, inputs, names), [inputs[name] for name in names]


def value_and_gradients(tf, spec, sample, function, tensors):
    wanted = spec.differentiable(sample)
    watched = [x for name, x in zip(sample.tensors, tensors, strict=True) if name in wanted]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        outputs = function(*tensors)
    return [*tf.nest.flatten(outputs), *tape.gradient(outputs, watched)]


def two_derivatives(tf, function, x):
    """The gradient of a sum of function(x), and the gradient of the sum of that gradient."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(function(x))
        first = inner.gradient(y, x)
    return first, outer.gradient(first, x)


def steps(backend, spec, samples, dtype):
    """One function of all inputs of all samples, forward and backward, and these inputs: it is compiled once."""
    calls = [(sample, *tensor_function(backend, spec, sample, dtype)) for sample in samples]

    def compute(inputs):
        return [
            value_and_gradients(backend.tf, spec, sample, function, tensors)
            for (sample, function, _), tensors in zip(calls, inputs, strict=True)
        ]

    return compute, [tensors for *_, tensors in calls]


def signature_shape(shape: tuple[int, ...], known: str) -> tuple[int | None, ...] | None:
    """The part of a shape that a signature declares."""
    if known == "none":
        return None
    if known == "rank":
        return (None,) * len(shape)
    return (None, *shape[1:]) if known == "batch-free" and shape else shape


def function_and_tensors(backend, spec, sample, dtype="float64"):
    inputs = backend.tensors(sample, dtype)
    names = spec.differentiable(sample)
    return function_of(backend, spec, sample, inputs, names), [inputs[name] for name in names]


def flat(tf, function):
    """The function with all outputs concatenated."""
    return lambda *tensors: tf.concat([tf.reshape(y, [-1]) for y in tf.nest.flatten(function(*tensors))], 0)


def weighted(tf, outputs):
    """One number of all outputs, in which every element has another weight."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = tf.constant(0.0, tf.float64)
    for y in outputs:
        weights = tf.sin(tf.range(tf.size(y, tf.int64), dtype=y.dtype) + 1)
        total += tf.reduce_sum(weights * tf.reshape(y, [-1]) ** 2)
    return total


def gradient_of(tf, first, tensors):
    """The gradient of one number made of all outputs of `first`."""
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        total = tf.add_n([tf.reduce_sum(tf.sin(g)) for g in tf.nest.flatten(first(tensors))])
    return tape.gradient(total, tensors)


def jvp(tf, function, tensors, tangents):
    """The derivative along the tangents, by forward mode."""
    with tf.autodiff.ForwardAccumulator(tensors, tangents) as accumulator:
        outputs = function(*tensors)
    return accumulator.jvp(outputs)


def plainly(tf, function, tensors):
    return function(*tensors)


def values_and_gradients(tf, spec, sample, function, tensors, way):
    wanted = [x for name, x in zip(sample.tensors, tensors, strict=True) if name in spec.differentiable(sample)]
    with tf.GradientTape() as tape:
        tape.watch(wanted)
        results = tf.nest.flatten(way(tf, function, tensors))
    return [*results, *tape.gradient(results, wanted)]


def assert_all_same_bits(got, expected, label=""):
    for left, right in zip(got, expected, strict=True):
        assert_same_bits(left.numpy(), right.numpy(), label)
