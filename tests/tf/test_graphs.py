"""TensorFlow: tf.function with known and unknown shapes, shape inference of graphs, SavedModels."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.helpers.numerics import assert_same_bits
from tests.helpers.tf_functions import signature_shape, steps, tensor_function, value_and_gradients
from tests.specifications import BUILT_IN


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_function_has_the_bits_of_eager(tf_backend, spec, dtype, random):
    tf = tf_backend.tf
    samples = (spec.sample((3, 5, 8), random), *spec.more_samples(random))
    compute, inputs = steps(tf_backend, spec, samples, dtype)
    for sample, found, wanted in zip(samples, tf.function(compute)(inputs), compute(inputs), strict=True):
        for got, expected in zip(found, wanted, strict=True):
            assert_same_bits(got.numpy(), expected.numpy(), str(sample))


@pytest.mark.parametrize("known", ["batch-free", "rank", "none"])
def test_one_trace_for_all_shapes(tf_backend, spec, known, random):
    tf = tf_backend.tf
    first = spec.sample((6, 5, 8), random)
    function, tensors = tensor_function(tf_backend, spec, first, "float32")
    traces = []

    def counted(*xs):
        traces.append(None)
        return function(*xs)

    signature = [tf.TensorSpec(signature_shape(tuple(x.shape), known), x.dtype) for x in tensors]
    compiled = tf.function(counted, input_signature=signature)
    for size in (6, 9, 1, 0):
        _, tensors = tensor_function(tf_backend, spec, spec.sample((size, 5, 8), random), "float32")
        for got, expected in zip(tf.nest.flatten(compiled(*tensors)), tf.nest.flatten(function(*tensors)), strict=True):
            assert_same_bits(got.numpy(), expected.numpy())
    assert len(traces) == 1


@pytest.mark.parametrize("known", ["batch-free", "rank"])
def test_gradients_with_unknown_sizes(tf_backend, spec, known, random):
    tf = tf_backend.tf
    for shape in ((6, 5, 8), (6, 8)):
        sample = spec.sample(shape, random)
        function, tensors = tensor_function(tf_backend, spec, sample, "float32")
        signature = [tf.TensorSpec(signature_shape(tuple(x.shape), known), x.dtype) for x in tensors]
        compute = functools.partial(value_and_gradients, tf, spec, sample, function)
        compiled = tf.function(lambda *xs, compute=compute: compute(xs), input_signature=signature)
        for got, expected in zip(compiled(*tensors), compute(tensors), strict=True):
            assert_same_bits(got.numpy(), expected.numpy())


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_what_a_graph_knows_of_shapes(tf_backend, spec, dtype, random):
    """As precise as the inputs' shapes, and never wrong. Shapes do not depend on dtypes: all options run in one
    test."""
    tf = tf_backend.tf
    for sample in (spec.sample((6, 5, 8), random), *(spec.more_samples(random) if dtype == "bfloat16" else ())):
        function, tensors = tensor_function(tf_backend, spec, sample, dtype)
        for known in ("all", "rank", "none"):
            signature = [tf.TensorSpec(signature_shape(tuple(x.shape), known), x.dtype) for x in tensors]
            graph = tf.function(function, input_signature=signature).get_concrete_function()
            for inferred, actual in zip(
                tf.nest.flatten(graph.structured_outputs), tf.nest.flatten(function(*tensors)), strict=True
            ):
                assert inferred.dtype == actual.dtype
                assert inferred.shape.is_compatible_with(actual.shape)
                if known == "all":
                    assert inferred.shape == actual.shape
                if known == "rank":
                    assert inferred.shape.rank == actual.shape.rank


@pytest.mark.parametrize("spec", [spec for spec in BUILT_IN if not spec.name.startswith("attention")], ids=str)
def test_one_known_shape_tells_the_other(tf_backend, spec, random):
    """Attention is left out: its inputs may have different shapes."""
    tf = tf_backend.tf
    sample = spec.sample((6, 5, 8), random)
    function, tensors = tensor_function(tf_backend, spec, sample, "float32")
    outputs = tf.nest.flatten(function(*tensors))
    for i, known in enumerate(tensors):
        signature = [tf.TensorSpec(x.shape if i == j else None, x.dtype) for j, x in enumerate(tensors)]
        graph = tf.function(function, input_signature=signature).get_concrete_function()
        for inferred, output in zip(tf.nest.flatten(graph.structured_outputs), outputs, strict=True):
            if known.shape == output.shape:
                assert inferred.shape == output.shape


def test_saved_model(tf_cpu, spec, tmp_path, random):
    tf = tf_cpu.tf
    sample = spec.sample((6, 5, 8), random)
    function, tensors = tensor_function(tf_cpu, spec, sample, "float32")
    module = tf.Module()
    module.call = tf.function(
        function,
        input_signature=[tf.TensorSpec([None, *x.shape[1:]] if x.shape.rank else [], x.dtype) for x in tensors],
    )
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    for got, expected in zip(tf.nest.flatten(loaded.call(*tensors)), tf.nest.flatten(function(*tensors)), strict=True):
        assert_same_bits(got.numpy(), expected.numpy())


def test_arrays_and_lists_become_tensors(tf_backend, spec, random):
    sample = spec.sample((3, 5), random)
    inputs = tf_backend.tensors(sample, "float32")
    expected = tf_backend.call(spec.name, inputs, sample.options)
    arrays = {name: x.numpy() if name in sample.tensors else x for name, x in inputs.items()}
    lists = {name: x.tolist() if isinstance(x, np.ndarray) else x for name, x in arrays.items()}
    for given in (arrays, lists):
        for got, output in zip(tf_backend.call(spec.name, given, sample.options), expected, strict=True):
            assert_same_bits(got.numpy(), output.numpy())


@pytest.mark.parametrize("spec", BUILT_IN, ids=str)
def test_name(tf_backend, spec, random):
    """The last argument, as everywhere in TensorFlow: the scope of the operations."""
    tf = tf_backend.tf
    sample = spec.sample((3, 5), random)
    inputs = tf_backend.tensors(sample, "float32")
    with tf.Graph().as_default() as graph:
        placeholders = {
            name: tf.compat.v1.placeholder(x.dtype, x.shape) if name in sample.tensors else x
            for name, x in inputs.items()
        }
        tf_backend.call(spec.name, placeholders, {**sample.options, "name": "chosen"})
        assert any("chosen" in operation.name for operation in graph.get_operations())
    assert tf_backend.call(spec.name, inputs, {**sample.options, "name": "chosen"})
