"""TensorFlow: objects accepted as tensors, and refused ones."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.tf_functions import assert_all_same_bits, tensor_function


def results(backend, spec, sample, inputs, watched):
    """Outputs, and the gradients of the watched tensors or variables."""
    with backend.tf.GradientTape() as tape:
        tape.watch(watched)
        outputs = backend.call(spec.name, inputs, sample.options)
    return [*outputs, *tape.gradient(outputs, watched)]


def plain_results(backend, spec, sample, inputs):
    return results(backend, spec, sample, inputs, [inputs[name] for name in spec.differentiable(sample)])


def test_variables_captured_by_a_function(tf_backend, spec, random):
    """The graph reads the values that are assigned between calls."""
    tf = tf_backend.tf
    samples = [spec.sample((3, 5), random) for _ in range(2)]
    first, second = (tf_backend.tensors(sample, "float32") for sample in samples)
    variables = {name: tf.Variable(x) for name, x in first.items()}
    watched = [variables[name] for name in spec.differentiable(samples[0])]
    compute = tf.function(lambda: results(tf_backend, spec, samples[0], variables, watched))
    assert_all_same_bits(compute(), plain_results(tf_backend, spec, samples[0], first))
    for name, variable in variables.items():
        variable.assign(second[name])
    assert_all_same_bits(compute(), plain_results(tf_backend, spec, samples[0], second))


def test_keras_variables(tf_backend, spec, random):
    import keras

    tf = tf_backend.tf
    sample = spec.sample((3, 5), random)
    inputs = tf_backend.tensors(sample, "float32")
    variables = {name: keras.Variable(x.numpy(), dtype=x.dtype.name) for name, x in inputs.items()}
    watched = [variables[name].value for name in spec.differentiable(sample)]
    expected = plain_results(tf_backend, spec, sample, inputs)
    assert_all_same_bits(results(tf_backend, spec, sample, variables, watched), expected, "eager")
    compute = tf.function(lambda: results(tf_backend, spec, sample, variables, watched))
    assert_all_same_bits(compute(), expected, "graph")


def layer_of(backend, spec, sample, inputs, policy):
    """A Keras layer whose weights are the differentiable inputs, all float32; it is called with a list of the
    others."""
    import keras

    names = spec.differentiable(sample)
    others = [name for name in sample.tensors if name not in names]

    class Layer(keras.Layer):
        def __init__(self):
            super().__init__(dtype=policy)
            for name in names:
                values = keras.initializers.Constant(inputs[name].numpy())
                setattr(self, f"given_{name}", self.add_weight(shape=inputs[name].shape, initializer=values))

        def call(self, given):
            weights = {name: getattr(self, f"given_{name}") for name in names}
            rest = dict(zip(others, given, strict=True))
            return backend.call(spec.name, {**inputs, **weights, **rest}, sample.options)

    return Layer(), [inputs[name] for name in others]


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_mixed_precision(tf_backend, spec, narrow, random):
    """Under Keras's policy: computed in 16 bits, with float32 gradients for float32 weights."""
    tf = tf_backend.tf
    sample = spec.sample((3, 5), random)
    wide = tf_backend.tensors(sample, "float32")
    inputs = {name: tf.cast(x, narrow) if name in sample.floating else x for name, x in wide.items()}
    # The gradients of float32 weights are float32, and equal the 16-bit ones.
    expected = [
        tf.cast(x, "float32") if i >= len(spec.outputs) else x
        for i, x in enumerate(plain_results(tf_backend, spec, sample, inputs))
    ]
    layer, others = layer_of(tf_backend, spec, sample, wide, f"mixed_{narrow}")

    def compute():
        with tf.GradientTape() as tape:
            outputs = layer(others)
        return [*outputs, *tape.gradient(outputs, [v.value for v in layer.trainable_variables])]

    assert_all_same_bits(compute(), expected, "eager")
    assert_all_same_bits(tf.function(compute)(), expected, "graph")


def test_loss_scaling(tf_backend, spec, random):
    """Keras's optimizer detects infinite gradients of float16, skips the step and reduces the scale."""
    import keras

    tf = tf_backend.tf
    sample = spec.sample((3, 5), random)
    layer, others = layer_of(tf_backend, spec, sample, tf_backend.tensors(sample, "float32"), "mixed_float16")
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=2.0**40)
    weights = [v.value for v in layer.trainable_variables]
    before = [w.numpy() for w in weights]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(tf.cast(y, "float32")) for y in layer(others)])
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, weights)
        optimizer.apply(gradients, layer.trainable_variables)
        return gradients

    assert any(not np.isfinite(g).all() for g in step())
    assert_all_same_bits(weights, [tf.constant(w) for w in before])
    assert optimizer.dynamic_scale.numpy() == 2.0**39
    optimizer.dynamic_scale.assign(4.0)
    gradients = step()
    for weight, old, gradient in zip(weights, before, gradients, strict=True):
        np.testing.assert_allclose(weight, old - 0.5 * gradient.numpy() / 4, rtol=1e-6, atol=1e-6)


def test_slices_as_upstream_gradient(tf_backend, spec, random):
    """The gradient of `tf.gather` is IndexedSlices, some with repeated indices."""
    tf = tf_backend.tf
    sample = spec.sample((4, 5), random)
    function, tensors = tensor_function(tf_backend, spec, sample)
    wanted = [x for name, x in zip(sample.tensors, tensors, strict=True) if name in spec.differentiable(sample)]

    def places(y):
        return [place % y.shape[0] for place in (3, 0, 3)]

    def gradients(select):
        with tf.GradientTape() as tape:
            tape.watch(wanted)
            outputs = tf.nest.flatten(function(*tensors))
            selected = [select(y) for y in outputs]
        return tape.gradient(selected, wanted)

    def by_counts(y):
        counts = tf.constant(np.bincount(places(y), minlength=y.shape[0]), y.dtype)
        return y * tf.reshape(counts, [-1] + [1] * (y.shape.rank - 1))

    expected = gradients(by_counts)
    assert_all_same_bits(gradients(lambda y: tf.gather(y, places(y))), expected, "eager")
    graph = tf.function(lambda: gradients(lambda y: tf.gather(y, places(y))))
    assert_all_same_bits(graph(), expected, "graph")


def test_slices_as_input(tf_backend, random):
    """TensorFlow converts them to a tensor; so do the operators."""
    tf = tf_backend.tf
    values = tf.constant(random.normal(size=(2, 3)))
    slices = tf.IndexedSlices(values, tf.constant([0, 2]), tf.constant([4, 3]))
    assert_all_same_bits([tf_backend.functions.relu(slices)], [tf.nn.relu(tf.convert_to_tensor(slices))])


def test_ragged_and_sparse_tensors(tf_backend, spec, random):
    """Refused as any argument; the error states the remedy."""
    tf = tf_backend.tf
    sample = spec.sample((3, 5), random)
    inputs = tf_backend.tensors(sample, "float32")
    for name, x in inputs.items():
        if x.shape.rank:
            ragged, sparse = tf.RaggedTensor.from_tensor(tf.stack([x, x])), tf.sparse.from_dense(x)
            for given, advice in ((ragged, "tf.ragged.map_flat_values"), (sparse, "tf.sparse.to_dense")):
                sentence = (
                    rf"fusedops\.{spec.function}: {name} must be a tensor; got {type(given).__name__}: .*{advice}"
                )
                with pytest.raises(TypeError, match=sentence):
                    tf_backend.call(spec.name, {**inputs, name: given}, sample.options)
                with pytest.raises(TypeError, match=sentence):

                    def call(given, name=name):
                        return tf_backend.call(spec.name, {**inputs, name: given}, sample.options)

                    tf.function(call)(given)


def test_flat_values_of_a_ragged_tensor(tf_backend):
    """The error message recommends them."""
    tf = tf_backend.tf
    ragged = tf.RaggedTensor.from_row_lengths(tf.constant([[-1.0, 2.0], [3.0, -4.0], [5.0, 6.0]]), [2, 0, 1])
    result = tf.ragged.map_flat_values(tf_backend.functions.relu, ragged)
    assert result.to_list() == [[[0.0, 2.0], [3.0, 0.0]], [], [[5.0, 6.0]]]


def test_zeros_keep_their_sign_as_attributes(tf_backend):
    """0 and -0 are equal, so a cache of spelled numbers must not use them as keys."""
    with tf_backend.tf.Graph().as_default():
        x = tf_backend.tf.ones((1, 4))
        for scale in (0.0, -0.0, 0.5, 0.0):
            (y,) = tf_backend.call("softmax", {"x": x}, {"scale": scale})
            assert y.op.get_attr("scale") == repr(scale).encode()
