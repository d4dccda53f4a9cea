"""TensorFlow: every way to call an operator gives the bits of the plain call and of its gradients."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.maps import is_batched
from tests.helpers.numerics import assert_same_bits
from tests.helpers.tf_functions import (
    assert_all_same_bits,
    function_and_tensors,
    plainly,
    tensor_function,
    values_and_gradients,
)
from tests.specifications import MAPPED_AT_ONCE, WITH_ROWS


def autograph(tf, function, tensors):
    """Python control flow over tensors, which AutoGraph rewrites."""

    @tf.function(autograph=True)
    def compute(*tensors):
        results = function(*tensors)
        for i in tf.range(3):
            if i == 1:
                results = function(*tensors)
            else:
                continue
        return results

    return compute(*tensors)


def nested_functions(tf, function, tensors):
    inner = tf.function(function)
    return tf.function(lambda *xs: inner(*xs))(*tensors)


def reduce_retracing(tf, function, tensors):
    return tf.function(function, reduce_retracing=True)(*tensors)


def cond(tf, function, tensors):
    other = tf.nest.map_structure(tf.zeros_like, function(*tensors))
    return tf.cond(tf.size(tensors[-1]) < 100, lambda: function(*tensors), lambda: other)


def switch_case(tf, function, tensors):
    other = tf.nest.map_structure(tf.zeros_like, function(*tensors))
    return tf.switch_case(tf.constant(1), [lambda: other, lambda: function(*tensors)])


def while_loop(tf, function, tensors):
    start = tf.nest.map_structure(tf.zeros_like, function(*tensors))
    return tf.while_loop(lambda i, _: i < 3, lambda i, _: (i + 1, function(*tensors)), [tf.constant(0), start])[1]


def recompute_grad(tf, function, tensors):
    """TensorFlow adds zeros for every argument, but lacks them for booleans: these are captured instead."""

    def call(*given):
        rest = iter(given)
        return function(*(x if x.dtype == tf.bool else next(rest) for x in tensors))

    return tf.recompute_grad(call)(*(x for x in tensors if x.dtype != tf.bool))


def custom_gradient(tf, function, tensors):
    """A user's gradient, composed of the operator's own."""

    @tf.custom_gradient
    def compute(*xs):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(xs)
            results = function(*xs)
        return results, lambda *dys: tape.gradient(tf.nest.flatten(results), xs, list(dys))

    return compute(*tensors)


WAYS = (
    autograph,
    nested_functions,
    reduce_retracing,
    cond,
    switch_case,
    while_loop,
    recompute_grad,
    custom_gradient,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_same_bits(tf_backend, spec, way, random):
    """Values and gradients, called eagerly and inside a graph."""
    tf = tf_backend.tf
    sample = spec.sample((3, 5), random)
    function, tensors = tensor_function(tf_backend, spec, sample)

    def compute(*xs):
        return values_and_gradients(tf, spec, sample, function, xs, way)

    expected = values_and_gradients(tf, spec, sample, function, tensors, plainly)
    assert_all_same_bits(compute(*tensors), expected, "eager")
    assert_all_same_bits(tf.function(compute)(*tensors), expected, "graph")


def vectorized_map(tf, function, stacked):
    return tf.vectorized_map(lambda xs: function(*xs), stacked)


def loop_over_tensor_array(tf, function, stacked):
    """A loop as users of AutoGraph write it."""

    @tf.function
    def compute(*stacked):
        one = tf.nest.flatten(function(*(x[0] for x in stacked)))
        arrays = [tf.TensorArray(y.dtype, tf.shape(stacked[0])[0], element_shape=y.shape) for y in one]
        for i in tf.range(tf.shape(stacked[0])[0]):
            results = tf.nest.flatten(function(*(x[i] for x in stacked)))
            arrays = [array.write(i, y) for array, y in zip(arrays, results, strict=True)]
        return tuple(array.stack() for array in arrays)

    return compute(*stacked)


def test_vectorized_map(tf_backend, spec, random):
    """Each call and its gradients equal a separate call; a combined product may take another kernel."""
    for found, expected in mapped_and_alone(tf_backend, spec, vectorized_map, random):
        if spec.rows_are_independent:
            assert_all_same_bits(found, expected)
            continue
        for got, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, right, rtol=0, atol=16 * np.finfo(np.float32).eps)


# The loops above cover every operator; arrays do not depend on it: a scalar, two outputs, integers.
IN_ARRAYS = [spec for spec in WITH_ROWS if spec.name in ("axpby", "add_rms_norm", "cross_entropy")]


@pytest.mark.parametrize("spec", IN_ARRAYS, ids=str)
def test_loop_over_arrays(tf_backend, spec, random):
    for found, expected in mapped_and_alone(tf_backend, spec, loop_over_tensor_array, random):
        assert_all_same_bits(found, expected)


def mapped_and_alone(tf_backend, spec, mapped, random):
    """Values and gradients of a mapped call, eagerly and inside a graph, and of each separate call."""
    tf = tf_backend.tf
    samples = [spec.sample((3, 5), random) for _ in range(3)]
    calls = [tensor_function(tf_backend, spec, sample) for sample in samples]
    function = calls[0][0]
    alone = [values_and_gradients(tf, spec, samples[0], function, tensors, plainly) for _, tensors in calls]
    expected = [tf.stack(results) for results in zip(*alone, strict=True)]
    stacked = tuple(tf.stack(inputs) for inputs in zip(*(tensors for _, tensors in calls), strict=True))

    def compute(*xs):
        return values_and_gradients(tf, spec, samples[0], function, xs, mapped)

    yield compute(*stacked), expected
    yield tf.function(compute)(*stacked), expected


def call_of_slices(backend, spec, dtype, random):
    """A sample, its inputs, those that a map slices, and the function of their slices."""
    sample = spec.sample((4, 3, 6), random)
    inputs = backend.tensors(sample, dtype)
    sliced = {name: inputs[name] for name in sample.tensors if name not in spec.shared}
    return sample, inputs, sliced, lambda slices: backend.call(spec.name, {**inputs, **slices}, sample.options)


@pytest.mark.parametrize("spec", WITH_ROWS, ids=str)
def test_vectorized_map_with_shared_parameters(tf_backend, spec, random):
    """Captured tensors are shared by all calls, and their gradients add up."""
    tf = tf_backend.tf
    sample, inputs, mapped, one = call_of_slices(tf_backend, spec, "float64", random)
    wanted = spec.differentiable(sample)

    def loss(all_calls):
        with tf.GradientTape() as tape:
            tape.watch([inputs[name] for name in wanted])
            outputs = all_calls()
            total = sum(tf.reduce_sum(tf.sin(y)) for y in outputs)
        return [*outputs, *tape.gradient(total, [inputs[name] for name in wanted])]

    def in_turn():
        calls = [one({name: x[i] for name, x in mapped.items()}) for i in range(4)]
        return [tf.stack(outputs) for outputs in zip(*calls, strict=True)]

    expected = loss(in_turn)
    got = loss(lambda: tf.vectorized_map(one, mapped))
    for left, right in zip(got, expected, strict=True):
        # Sums of at most 4 x 3 rows in any order, of terms of a few units: some dozens of roundings of 2^-53.
        np.testing.assert_allclose(left, right, rtol=1e-13, atol=1e-13)


def types_of_nodes(graph):
    """The operation types of the graph and of the functions that it calls."""
    definition = graph.as_graph_def()
    functions = (node for function in definition.library.function for node in function.node_def)
    return {node.op for node in (*definition.node, *functions)}


@pytest.mark.parametrize("spec", MAPPED_AT_ONCE, ids=str)
def test_vectorized_map_makes_one_call(tf_backend, spec, random, monkeypatch):
    """One call if the operator is batched and its inputs have one rank, otherwise a loop; neither prints a warning."""
    from fusedops.tf.library import TABLE

    tf = tf_backend.tf
    sample, _, mapped, one = call_of_slices(tf_backend, spec, "float32", random)
    messages: list[str] = []
    monkeypatch.setattr(tf.get_logger(), "handle", lambda record: messages.append(record.getMessage()))
    graph = tf.function(lambda: tf.vectorized_map(one, mapped)).get_concrete_function().graph
    assert messages == []
    assert bool(types_of_nodes(graph) & {"While", "StatelessWhile"}) == (not is_batched(TABLE, spec, sample))


@pytest.mark.parametrize("spec", MAPPED_AT_ONCE, ids=str)
def test_vectorized_map_under_xla(tf_backend, spec, random):
    """Compiled with derivatives, unless there is a loop: TensorFlow gives its loop no bound, and XLA needs one."""
    from fusedops.tf.library import TABLE

    tf = tf_backend.tf
    sample, inputs, mapped, one = call_of_slices(tf_backend, spec, "float64", random)
    wanted = spec.differentiable(sample) if is_batched(TABLE, spec, sample) else ()

    def compute():
        watched = [inputs[name] for name in wanted]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            outputs = tf.vectorized_map(one, mapped)
        return [*outputs, *tape.gradient(outputs, watched)]

    for got, expected in zip(tf.function(compute, jit_compile=True)(), compute(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-13)


def test_dataset(tf_cpu, spec, random):
    """Operators run in `tf.data`'s own threads."""
    tf = tf_cpu.tf
    samples = [spec.sample((3, 5), random) for _ in range(4)]
    calls = [tensor_function(tf_cpu, spec, sample) for sample in samples]
    function = calls[0][0]
    stacked = tuple(tf.stack(inputs) for inputs in zip(*(tensors for _, tensors in calls), strict=True))
    dataset = tf.data.Dataset.from_tensor_slices(stacked).map(function, num_parallel_calls=2)
    for got, (_, tensors) in zip(dataset, calls, strict=True):
        assert_all_same_bits(tf.nest.flatten(got), tf.nest.flatten(function(*tensors)))


def test_gradients_of_a_graph(tf_backend, spec, random):
    """`tf.gradients` and a session, as in TensorFlow 1."""
    tf = tf_backend.tf
    sample = spec.sample((3, 5), random)
    _, tensors = tensor_function(tf_backend, spec, sample)
    wanted = spec.differentiable(sample)
    inputs = dict(zip(sample.tensors, tensors, strict=True))
    outputs, gradients = tf_backend.gradients(spec.name, inputs, sample.options, wanted)
    upstream = [dy.numpy() for dy in tf_backend.upstream(outputs)]
    with tf.Graph().as_default(), tf_backend.place:
        fed = {name: tf.compat.v1.placeholder(x.dtype, [None] * x.shape.rank) for name, x in inputs.items()}
        found = tf_backend.call(spec.name, fed, sample.options)
        derived = tf.gradients(found, [fed[name] for name in wanted], [tf.constant(dy) for dy in upstream])
        feeds = {fed[name]: x.numpy() for name, x in inputs.items()}
        with tf.compat.v1.Session() as session:
            got = session.run([*found, *derived], feeds)
    for left, right in zip(got, [*outputs, *gradients.values()], strict=True):
        assert_same_bits(np.asarray(left), right.numpy())


def test_batch_jacobian(tf_backend, spec, random):
    """The derivatives of each row of the outputs by its own row of the inputs, vectorized and as a loop."""
    tf = tf_backend.tf
    sample = spec.sample((3, 4), random)
    function, tensors = function_and_tensors(tf_backend, spec, sample)
    place = next(i for i, name in enumerate(spec.differentiable(sample)) if name not in spec.shared)
    x = tensors[place]

    def rows(*tensors):
        return tf.concat([tf.reshape(y, [3, -1]) for y in tf.nest.flatten(function(*tensors))], 1)

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = rows(*tensors)
    fast, slow = (tape.batch_jacobian(y, x, experimental_use_pfor=vectorized) for vectorized in (True, False))
    whole = tape.jacobian(y, x, experimental_use_pfor=False)
    for i in range(3):
        np.testing.assert_allclose(fast[i], whole[i, :, i], rtol=1e-13, atol=1e-13)
        np.testing.assert_array_equal(slow[i], whole[i, :, i])


def test_gradients_of_unknown_ranks(tf_backend, spec, random):
    tf = tf_backend.tf
    sample = spec.sample((4, 3, 5), random)
    function, tensors = tensor_function(tf_backend, spec, sample)

    def compute(*xs):
        return values_and_gradients(tf, spec, sample, function, xs, plainly)

    signature = [tf.TensorSpec(None, x.dtype) for x in tensors]
    assert_all_same_bits(tf.function(compute, input_signature=signature)(*tensors), compute(*tensors))
