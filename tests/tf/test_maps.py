"""TensorFlow: tf.vectorized_map over any of an operator's tensors gives the result of a loop over single calls, or its
error."""

from __future__ import annotations

from functools import partial

import numpy as np

from tests.helpers.maps import equal_sizes, selections, sentence, with_more_tensors
from tests.helpers.numerics import assert_same_bits
from tests.helpers.tf_functions import gradient_of

# Sums of at most 27 terms of a few units, in any order, and a sine of them: some dozens of roundings of 2^-53.
CLOSE = {"rtol": 1e-13, "atol": 1e-13}


def in_turn(tf, function, tensors, names):
    """`in_one` as a loop over single calls."""
    size = len(next(x for name, x in tensors.items() if name in names))
    calls = [function({name: x[i] if name in names else x for name, x in tensors.items()}) for i in range(size)]
    return tf.nest.map_structure(lambda *ys: tf.stack(ys), *calls)


def in_one(tf, function, tensors, names):
    shared = {name: x for name, x in tensors.items() if name not in names}
    return tf.vectorized_map(lambda slices: function({**shared, **slices}), {name: tensors[name] for name in names})


def outcome(backend, run):
    """The results, or the error message."""
    try:
        # The gradient of a slice may be IndexedSlices.
        return [backend.tf.convert_to_tensor(y) for y in backend.tf.nest.flatten(run())]
    except backend.errors as error:
        return sentence(error)


def check(got, expected, exact, label):
    if isinstance(expected, str) or isinstance(got, str):
        assert got == expected, label
        return
    for left, right in zip(got, expected, strict=True):
        if exact:
            assert_same_bits(left.numpy(), right.numpy(), label)
        else:
            np.testing.assert_allclose(left, right, **CLOSE, err_msg=label)


def function_of_named(backend, spec, sample, inputs):
    return lambda tensors: backend.call(spec.name, {**inputs, **tensors}, sample.options)


def of_few_ranks(spec, random, drawn=1):
    return equal_sizes(spec, random, drawn, highest_rank=max(2, spec.least_rank))


def mapped(backend, spec, chosen):
    """A function of the named tensors of each sample, and the names of the mapped ones."""
    for sample in chosen:
        inputs = backend.tensors(sample, "float64")
        tensors = {name: inputs[name] for name in sample.tensors}
        function = function_of_named(backend, spec, sample, inputs)
        for names in selections(sample):
            yield sample, function, tensors, names, f"{sample} {dict(sample.options)} over {names}"


def test_values_and_errors(tf_backend, spec, random):
    """Every selection of tensors of any rank: if the operator refuses a slice, the map raises the same message."""
    tf = tf_backend.tf
    for _, *call, label in mapped(tf_backend, spec, of_few_ranks(spec, random)):
        got, expected = (outcome(tf_backend, partial(way, tf, *call)) for way in (in_one, in_turn))
        check(got, expected, spec.rows_are_independent, label)


def in_graph(tf, function, tensors, names):
    """`in_one` in a graph that knows the ranks of the mapped tensors, but not the shapes of the others."""
    shapes = {name: [None] * x.shape.rank if name in names else None for name, x in tensors.items()}
    signature = {name: tf.TensorSpec(shapes[name], x.dtype) for name, x in tensors.items()}
    return tf.function(partial(in_one, tf, function, names=names), input_signature=[signature])(tensors)


def test_shared_tensors_of_unknown_shapes(tf_backend, spec, random):
    """A single call may refuse a rank that the graph does not know."""
    tf = tf_backend.tf
    chosen = (*of_few_ranks(spec, random, drawn=0), *with_more_tensors(spec, random))
    for _, function, tensors, names, label in mapped(tf_backend, spec, chosen):
        got = outcome(tf_backend, partial(in_graph, tf, function, tensors, names))
        expected = outcome(tf_backend, partial(in_turn, tf, function, tensors, names))
        if isinstance(expected, str):  # `infer` may raise another message for an unknown rank
            assert isinstance(got, str), label
        else:
            check(got, expected, spec.rows_are_independent, label)


def test_gradients_within_and_without(tf_backend, spec, random):
    tf = tf_backend.tf
    for sample, *call, label in mapped(tf_backend, spec, of_few_ranks(spec, random, drawn=0)):
        for of in (of_each_call, of_all_calls):
            got, expected = (
                outcome(tf_backend, partial(of, tf, way, spec.differentiable(sample), *call))
                for way in (in_one, in_turn)
            )
            check(got, expected, False, f"{label}, {of.__name__}")


def of_each_call(tf, way, wanted, function, tensors, names):
    return way(tf, lambda given: gradients(tf, function, given, wanted), tensors, names)


def of_all_calls(tf, way, wanted, function, tensors, names):
    return gradients(tf, lambda given: way(tf, function, given, names), tensors, wanted)


def gradients(tf, function, tensors, wanted):
    def of_wanted(given):
        return function({**tensors, **dict(zip(wanted, given, strict=True))})

    return gradient_of(tf, of_wanted, [tensors[name] for name in wanted])
