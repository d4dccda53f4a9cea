"""The fast path around `keras.layers.Layer.__call__`: when layers take it, and every call that must go through
Keras."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.helpers.keras_layers import Case, load_keras, ours, tensors, value_and_gradients
from tests.helpers.numerics import assert_same_bits

LAYERS = (
    Case("RMSNormalization"),
    Case("LayerNormalization"),
    Case("LayerNormalization", {"scale": False}),
    Case("Softmax"),
    Case("AddRMSNormalization", inputs=2),
    Case("AddLayerNormalization", inputs=2),
)
NORM = Case("LayerNormalization", shape=(3, 8))


@pytest.fixture
def keras_calls(tf_backend, monkeypatch):
    """The fusedops layers that Keras has called so far."""
    load_keras()
    from keras.src.ops.operation import Operation

    layers, call = [], Operation.__call__

    def spy(self, *args, **kwargs):
        if type(self).__module__.startswith("fusedops"):
            layers.append(self)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(Operation, "__call__", spy)
    yield layers


def called(layer, x):
    """A layer that has been called and is ready for the fast path."""
    layer(x)
    return layer


@pytest.fixture
def norm(tf_backend, keras_calls, random):
    """A layer that is ready for the fast path, and its input."""
    x = tensors(NORM, tf_backend, "float32", random)
    layer = called(ours(NORM, "float32"), x)
    keras_calls.clear()
    return layer, x


@pytest.mark.parametrize("policy", ["float64", "float32", "bfloat16", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_the_bits_are_those_of_the_long_way(tf_backend, keras_calls, case, policy, random):
    tf, keras = tf_backend.tf, load_keras()
    from keras.src.backend import AutocastScope

    layer = ours(case, policy)
    x = tensors(case, tf_backend, layer.compute_dtype, random)
    layer(x)
    assert keras_calls == [layer]  # the call that builds it
    fine = [random.normal(size=weight.shape) for weight in layer.weights]
    layer.set_weights(fine)
    direct = value_and_gradients(tf_backend, layer, x, layer.trainable_variables)
    if case.inputs == 2:
        for y, expected in zip([*layer(*x), *layer(tuple(x))], 2 * direct[:2], strict=True):
            assert_same_bits(y.numpy(), expected)
    with AutocastScope("float16"):  # as inside a layer of another dtype, for which Keras casts variables
        for y, expected in zip(tf.nest.flatten(layer(x)), direct, strict=False):
            assert_same_bits(y.numpy(), expected)
    assert keras_calls == [layer]
    expected = value_and_gradients(
        tf_backend, lambda x: keras.layers.Layer.__call__(layer, x), x, layer.trainable_variables
    )
    assert keras_calls == [layer, layer]
    for got, value in zip(direct, expected, strict=True):
        assert_same_bits(got, value)
    assert [y.dtype.name for y in tf.nest.flatten(layer(x))] == [layer.compute_dtype] * case.inputs


def test_a_layer_whose_class_was_assigned(tf_backend, keras_calls, random):
    keras = load_keras()
    x = tensors(NORM, tf_backend, "float32", random)
    layer = called(keras.layers.LayerNormalization(), x)
    layer.__class__ = type(ours(NORM, "float32"))
    layer(x)
    assert keras_calls == []


def test_what_is_not_built_or_was_not_called(tf_backend, keras_calls, random):
    x = tensors(NORM, tf_backend, "float32", random)
    layer = ours(NORM, "float32")
    layer.build(x.shape)
    layer(x)
    assert keras_calls == [layer]
    with pytest.raises(RuntimeError, match="after the layer has been called"):
        layer._register_call_context_args("phase")
    layer.built = False
    with pytest.raises(ValueError, match="to a layer that is already built"):  # Keras tries to build again
        layer(x)


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras copies an array as NumPy 1 did
@pytest.mark.parametrize("given", ["numpy", "variable", "float64", "bfloat16", "keyword", "two"])
def test_other_inputs_than_a_tensor_of_the_layers_dtype(tf_backend, keras_calls, given, random):
    tf, keras = tf_backend.tf, load_keras()
    case = Case("RMSNormalization", shape=(3, 8))
    x = tensors(case, tf_backend, "float32", random)
    layer = called(ours(case, "float32"), x)
    keras_calls.clear()
    expected = layer(x)
    assert keras_calls == []
    if given == "keyword":
        y = layer(x=x)
    elif given == "two":
        with pytest.raises(TypeError, match="too many positional arguments"):
            layer(x, x)
        return
    else:
        cast = {"numpy": x.numpy, "variable": lambda: keras.Variable(x)}
        y = layer(cast.get(given, lambda: tf.cast(x, given))())
    assert keras_calls == [layer]
    assert y.dtype == tf.float32
    assert_same_bits(y.numpy(), expected.numpy())


def test_what_is_no_tensor_is_an_error(norm):
    layer, x = norm
    with pytest.raises(TypeError, match="missing a required argument"):
        layer()
    with pytest.raises(AttributeError, match="'list' object has no attribute"):
        layer([x])


def test_one_of_two_inputs_is_another(tf_backend, keras_calls, random):
    tf = tf_backend.tf
    case = Case("AddRMSNormalization", shape=(3, 8), inputs=2)
    x, residual = tensors(case, tf_backend, "float32", random)
    layer = called(ours(case, "mixed_bfloat16"), [x, residual])
    half = tf.cast(residual, tf.bfloat16)
    keras_calls.clear()
    for inputs in ([x, half], (half, x), [half.numpy(), half]):
        assert [y.dtype for y in layer(inputs)] == [tf.bfloat16] * 2
    assert keras_calls == [layer] * 3
    layer([half, half])
    assert keras_calls == [layer] * 3
    with pytest.raises(ValueError, match=r"takes two tensors, layer\(x, residual\)"):
        layer(half)


@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_a_mask_has_its_effect(tf_backend, keras_calls, case, random):
    tf = tf_backend.tf
    x = tensors(case, tf_backend, "float32", random)
    layer = called(ours(case, "float32"), x)
    keras_calls.clear()
    first = tf.nest.flatten(x)[0]
    first._keras_mask = first > 0
    if case.layer == "RMSNormalization":
        with pytest.warns(UserWarning, match="does not support masking"):
            layer(x)
        return
    outputs = tf.nest.flatten(layer(x))
    for y in outputs:
        np.testing.assert_array_equal(y._keras_mask, first._keras_mask)
    if case.layer == "Softmax":
        assert not outputs[0].numpy()[first.numpy() <= 0].any()
    assert keras_calls == [layer]


def test_a_mask_of_softmax_is_no_second_input(tf_backend, keras_calls, random):
    case = Case("Softmax", shape=(3, 8))
    x = tensors(case, tf_backend, "float32", random)
    layer = called(ours(case, "float32"), x)
    keep = tf_backend.tf.cast(x > 0, x.dtype)
    assert_same_bits(layer(x, keep).numpy(), layer(x, mask=keep).numpy())


def test_losses_find_the_logits_of_a_direct_softmax(tf_backend, keras_calls):
    tf, keras = tf_backend.tf, load_keras()
    logits = tf.constant([[0.0, 60.0, -60.0]])
    layer = called(ours(Case("Softmax"), "float32"), logits)
    loss = keras.losses.sparse_categorical_crossentropy(tf.constant([2]), layer(logits))
    np.testing.assert_allclose(loss, [120.0], rtol=1e-6)
    assert keras_calls == [layer]


def test_losses_of_a_layer(tf_backend, norm, keras_calls):
    """Losses of the previous call are cleared, also those of an inner layer; those of an activity regularizer are
    added."""
    tf, keras = tf_backend.tf, load_keras()
    layer, x = norm
    theirs = keras.layers.LayerNormalization(activity_regularizer=keras.regularizers.L2(0.5))
    theirs(x)
    layer.add_loss(tf.constant(1.0))
    layer(x)
    assert layer.losses == []
    layer.activity_regularizer = keras.regularizers.L2(0.5)
    for _ in range(2):
        layer(x)
        np.testing.assert_allclose([float(loss) for loss in layer.losses], [float(theirs.losses[0])], rtol=1e-5)
    outer = ours(NORM, "float32")
    outer.inner = keras.layers.Identity()
    called(outer, x)
    outer.inner.add_loss(tf.constant(1.0))
    outer(x)
    assert outer.losses == []


def test_losses_in_a_stateless_scope(tf_backend, norm, keras_calls):
    tf, keras = tf_backend.tf, load_keras()
    layer, x = norm
    gamma = 2 * tf.ones_like(layer.gamma)
    expected = 2 * layer(x)
    with keras.StatelessScope(state_mapping=[(layer.gamma, gamma)], collect_losses=True) as scope:
        np.testing.assert_allclose(layer(x), expected, rtol=1e-6)
        assert keras_calls == []
        layer.add_loss(tf.constant(1.0))
        layer(x)
        assert scope.losses == []


def test_what_no_kernel_does(tf_backend, keras_calls, random):
    case = Case("LayerNormalization", {"axis": 1}, shape=(4, 8, 8))
    x = tensors(case, tf_backend, "float32", random)
    layer = called(ours(case, "float32"), x)
    layer(x)
    assert keras_calls == [layer, layer]


def test_graphs_and_symbols(tf_backend, norm, keras_calls):
    """Also a function that computes from constants only."""
    tf, keras = tf_backend.tf, load_keras()
    layer, x = norm
    for function, inputs in ((layer, [x]), (lambda: layer(x), [])):
        graph = tf.function(function).get_concrete_function(*inputs)
        assert any(op.name.startswith(layer.name) for op in graph.graph.get_operations())
    assert keras_calls == [layer, layer]
    symbol = keras.Input((8,))
    model = keras.Model(symbol, layer(symbol))
    assert [each.name for each in model.layers[1:]] == [layer.name]
    keras_calls.clear()
    assert_same_bits(model(x).numpy(), layer(x).numpy())
    assert keras_calls == []


def test_a_subclass_computes_what_it_likes(tf_backend, keras_calls, random):
    tf, keras = tf_backend.tf, load_keras()
    import fusedops.tf.keras as fk

    class Trained(fk.LayerNormalization):
        def call(self, inputs, training=None):
            self.add_loss(tf.constant(3.0))
            return super().call(inputs) if training else tf.zeros_like(inputs)

    class Doubled(fk.LayerNormalization):
        def __call__(self, inputs):
            return 2 * super().__call__(inputs)

    class Narrow(fk.LayerNormalization):
        def __init__(self):
            super().__init__()
            self.input_spec = keras.layers.InputSpec(ndim=2)

    class Masking(fk.LayerNormalization):
        def compute_mask(self, inputs, previous_mask):
            return inputs > 0

    x = tensors(NORM, tf_backend, "float32", random)
    plain = called(fk.LayerNormalization(), x)(x)
    trained = called(Trained(), x)
    assert not trained(x).numpy().any()
    assert [float(loss) for loss in trained.losses] == [3.0]
    model = keras.Sequential([trained])
    assert_same_bits(model(x, training=True).numpy(), plain.numpy())
    assert_same_bits(called(Doubled(), x)(x).numpy(), 2 * plain.numpy())
    with pytest.raises(ValueError, match="expected ndim=2, found ndim=3"):
        called(Narrow(), x)(x[None])
    np.testing.assert_array_equal(called(Masking(), x)(x)._keras_mask, x > 0)


def test_what_is_set_on_a_layer(tf_backend, norm, keras_calls):
    keras = load_keras()
    layer, x = norm
    layer.input_spec = keras.layers.InputSpec(ndim=2)
    with pytest.raises(ValueError, match="expected ndim=2, found ndim=3"):
        layer(x[None])
    layer.input_spec = None
    layer.compute_mask = lambda inputs, previous_mask: inputs > 0
    np.testing.assert_array_equal(layer(x)._keras_mask, x > 0)
    del layer.compute_mask
    layer.call = lambda inputs: -inputs
    assert_same_bits(layer(x).numpy(), -x.numpy())


def test_calls_of_all_layers_are_wrapped(norm, keras_calls, monkeypatch):
    keras = load_keras()
    layer, x = norm
    wrapped, call = [], keras.layers.Layer.__call__

    def wrapper(self, *args, **kwargs):
        wrapped.append(self)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(keras.layers.Layer, "__call__", wrapper)
    layer(x)
    assert wrapped == [layer]


def test_the_call_of_a_class_is_replaced(norm, keras_calls, monkeypatch):
    layer, x = norm
    monkeypatch.setattr(type(layer), "call", lambda self, inputs: -inputs)
    assert_same_bits(layer(x).numpy(), -x.numpy())
    assert keras_calls == [layer]


def test_a_keras_that_is_not_known(norm, keras_calls, monkeypatch):
    """Calls were wrapped before fusedops was imported, or another Keras's layers have other attributes."""
    keras = load_keras()
    from fusedops.keras_layers import direct

    layer, x = norm
    assert direct._is_keras_known()

    @functools.wraps(direct._KERAS_CALL)
    def wrapper(*args, **kwargs):
        return direct._KERAS_CALL(*args, **kwargs)

    class Renamed(keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            del self._remat_mode

    for target, name, value in ((direct, "_KERAS_CALL", wrapper), (keras.layers, "Layer", Renamed)):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value)
            assert not direct._is_keras_known()
    monkeypatch.setattr(direct, "_KERAS_IS_KNOWN", False)
    layer(x)
    assert keras_calls == [layer]


def test_what_is_computed_again_after_an_error(tf_backend, norm, keras_calls, monkeypatch):
    """Keras repeats a call to raise a better error, but not if memory was exhausted or this package has a fault."""
    tf = tf_backend.tf
    layer, x = norm
    for error, again in (
        (tf.errors.ResourceExhaustedError(None, None, "no memory"), []),
        (RuntimeError("a fault"), []),
        (tf.errors.InvalidArgumentError(None, None, "a bad shape"), [layer]),
    ):
        calls = []

        def fail(self, x, error=error, calls=calls):
            calls.append(x)
            raise error

        monkeypatch.setattr(type(layer), "_fused", fail)
        with pytest.raises(type(error)):
            layer(x)
        assert keras_calls == again
        assert len(calls) == 1 + len(again)


def test_other_ways_to_compute(tf_backend, keras_calls, random):
    """Rematerialized, quantized, which Keras refuses, or with outputs distributed over devices."""
    keras = load_keras()
    x = tensors(NORM, tf_backend, "float32", random)
    expected = value_and_gradients(tf_backend, called(ours(NORM, "float32"), x), x)
    with keras.RematScope(mode="full"):
        layer = called(ours(NORM, "float32"), x)
    keras_calls.clear()
    for got, value in zip(value_and_gradients(tf_backend, layer, x), expected, strict=True):
        assert_same_bits(got, value)
    assert keras_calls == [layer]

    layer = called(ours(NORM, "float32"), x)
    layer._dtype_policy = keras.dtype_policies.get("int8_from_float32")
    with pytest.raises(NotImplementedError):
        layer(x)

    class Distribution:
        def __init__(self):
            self.paths = []

        def get_tensor_layout(self, path):
            self.paths.append(path)

    layer = called(ours(NORM, "float32", name="norm"), x)
    distribution = Distribution()
    keras.distribution.set_distribution(distribution)
    try:
        layer(x)
    finally:
        keras.distribution.set_distribution(None)
    assert distribution.paths == ["norm/output"]


@pytest.mark.parametrize("case", LAYERS[:2] + LAYERS[4:], ids=str)
def test_an_error_tells_of_the_layer(tf_backend, keras_calls, case, random):
    """The text is that of Keras's `__call__`."""
    keras = load_keras()
    layer = called(ours(case, "float32"), tensors(case, tf_backend, "float32", random))
    wrong = tensors(Case(case.layer, shape=(4, 9), inputs=case.inputs), tf_backend, "float32", random)
    messages = []
    for call in (layer, lambda x: keras.layers.Layer.__call__(layer, x)):
        with pytest.raises(Exception, match=rf"Exception encountered when calling {case.layer}\.call\(\)") as error:
            call(wrong)
        assert error.value.__cause__ is None
        messages.append((error.type, str(error.value)))
    assert messages[0] == messages[1]
