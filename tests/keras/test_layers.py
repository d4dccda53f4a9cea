"""The Keras layers: values and gradients against Keras's own, policies, axes, masks, configs, calls left to Keras."""

from __future__ import annotations

import functools
import re
import runpy
import sys

import ml_dtypes
import numpy as np
import pytest

from fusedops import loading
from tests.helpers.accuracy import assert_as_accurate
from tests.helpers.converting import converted
from tests.helpers.keras_layers import (
    FALLBACKS,
    FUSED,
    POLICIES,
    Case,
    load_keras,
    numbers,
    ours,
    products_of_float32,  # noqa: F401
    reference,
    set_random_weights,
    tensors,
    value_and_gradients,
)
from tests.helpers.numerics import assert_accurate, assert_same_bits
from tests.helpers.running import ROOT
from tests.helpers.specification import any_order

pytestmark = pytest.mark.filterwarnings("ignore:You passed `rms_scaling=True`")
CASES = pytest.mark.parametrize("case", FUSED, ids=str)
ALL = pytest.mark.parametrize("case", FUSED + FALLBACKS, ids=str)
# Besides the result's own, roundings to the layer's dtype: the product, its sum with the bias, the activation; the
# upstream gradient through each of them.
STORED = 6


def _before(version):
    return not loading.at_least(load_keras().__version__, version)


def is_left_to_keras(case):
    from fusedops.tf.keras_backend import has_gpu

    return case.is_fallback or (case.needs_gpu and not has_gpu())


def built(case, backend, dtype, random):
    """The fusedops layer and Keras's in this dtype, and Keras's in float64, all with the same weights."""
    layers = ours(case, dtype), reference(case, dtype), reference(case, "float64")
    for layer in layers:
        layer(tensors(case, backend, "float64", random))
    set_random_weights(layers, random)
    return layers


@CASES
@pytest.mark.parametrize("policy", POLICIES)
def test_values_and_gradients(tf_backend, case, policy, random):
    layer, keras_layer, exact_layer = built(case, tf_backend, policy, random)
    assert bool(layer.why_not()) == is_left_to_keras(case)
    dtype = layer.compute_dtype
    exact_inputs = tensors(case, tf_backend, "float64", random)
    inputs = tf_backend.tf.nest.map_structure(lambda x: tf_backend.tf.cast(x, dtype), exact_inputs)
    got = value_and_gradients(tf_backend, layer, inputs)
    of_keras = value_and_gradients(tf_backend, keras_layer, inputs)
    assert [array.dtype for array in got] == [array.dtype for array in of_keras]
    if (
        layer.why_not() and case.needs_gpu
    ):  # Keras's code, whose products of bfloat16 are inexact on CPUs without AVX-512
        for value, expected in zip(got, of_keras, strict=True):
            assert_same_bits(value, expected)
        return
    terms = max(case.shape[-1], int(np.prod(case.shape[:-1])))  # of the longest sum
    for i, (value, exact) in enumerate(
        zip(got, value_and_gradients(tf_backend, exact_layer, exact_inputs), strict=True)
    ):
        magnitude = np.full(exact.shape, np.abs(exact).max())
        # Both the layer and the reference err: the reference in float64 matters only for float64.
        assert_accurate(value, exact, magnitude, 4 * any_order(terms), f"result {i}", storage=(STORED, dtype))


@pytest.mark.parametrize("case", [case for case in FUSED if case.layer in ("Dense", "EinsumDense")], ids=str)
def test_products_as_where_there_is_a_gpu(tf_cpu, case, random, monkeypatch):
    """The path through `linear`, also with unknown batch and sequence sizes."""
    monkeypatch.setattr("fusedops.tf.keras_backend.has_gpu", lambda: True)
    layer, _, exact_layer = built(case, tf_cpu, "float32", random)
    x = tensors(case, tf_cpu, "float64", random)
    function = tf_cpu.tf.function(
        layer.call, input_signature=[tf_cpu.tf.TensorSpec([None] * (len(case.shape) - 1) + [case.shape[-1]])]
    )
    assert "FusedopsLinear" in {node.op for node in function.get_concrete_function().graph.as_graph_def().node}
    exact = value_and_gradients(tf_cpu, exact_layer, x)
    terms = max(int(np.prod(case.shape[1:])), int(np.prod(case.shape[:-1])))
    for call in (layer, function):
        got = value_and_gradients(tf_cpu, call, tf_cpu.tf.cast(x, "float32"), layer.trainable_variables)
        for value, right in zip(got, exact, strict=True):
            assert_accurate(value, right, np.full(right.shape, np.abs(right).max()), 4 * any_order(terms))


@pytest.mark.parametrize("case", FALLBACKS, ids=str)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_what_is_left_to_keras_has_its_bits(tf_backend, case, policy, random):
    """Products on a GPU are compared by accuracy: a repeated product may use another algorithm."""
    tf = tf_backend.tf
    layer, keras_layer, exact_layer = built(case, tf_backend, policy, random)
    exact_inputs = tensors(case, tf_backend, "float64", random)
    inputs = tf.nest.map_structure(lambda x: tf.cast(x, layer.compute_dtype), exact_inputs)
    assert layer.why_not(inputs[0] if case.inputs > 1 else inputs)
    got, expected = (value_and_gradients(tf_backend, each, inputs) for each in (layer, keras_layer))
    if tf_backend.device != "cpu" and case.layer in ("Dense", "EinsumDense", "GatedDense"):
        exact = value_and_gradients(tf_backend, exact_layer, exact_inputs)
        assert_as_accurate(got, expected, exact, layer.compute_dtype)
        return
    for mine, theirs in zip(got, expected, strict=True):
        assert_same_bits(mine, theirs)


def test_reasons(tf_cpu, random):
    """The reason why a call is left to Keras's code."""
    for name, arguments, reason in (
        ("LayerNormalization", {"axis": 1}, "axis 1 is not the last"),
        ("RMSNormalization", {"axis": [-2, -1]}, "axis [-2, -1] is not one"),
        ("AddRMSNormalization", {"axis": -2}, "axis -2 is not the last"),
        ("LayerNormalization", {"rms_scaling": True}, "rms_scaling is set"),
        ("RMSNormalization", {"epsilon": None}, "epsilon is None"),
        ("Dense", {"units": 3, "use_bias": False}, "without a bias and an activation there is nothing to fuse"),
        ("Dense", {"units": 3, "activation": "sigmoid"}, "Keras's losses need the logits before a sigmoid"),
        ("Dense", {"units": 3, "activation": "elu"}, "activation elu is not among those of the kernel"),
        ("GatedDense", {"units": 3, "activation": "elu"}, "activation elu is not among those of the kernel"),
        (
            "EinsumDense",
            {"equation": "abc,dc->abd", "output_shape": (8, 3)},
            "abc,dc->abd is no product of last axes with first ones",
        ),
        (
            "EinsumDense",
            {"equation": "abc,cd->abd", "output_shape": (8, 3), "bias_axes": "bd"},
            "its bias is over bd, not over d",
        ),
    ):
        layer = ours(Case(name, arguments), "float32")
        layer.build((2, 8, 8))
        assert layer.why_not() == reason


def test_quantized_and_lora(tf_cpu, random):
    """Both work as in Keras's Dense."""
    case = Case("Dense", {"units": 16, "activation": "gelu"})
    x = tensors(case, tf_cpu, "float32", random)
    for change in (lambda layer: layer.quantize("int8"), lambda layer: layer.enable_lora(2)):
        layers = ours(case, "float32"), load_keras().layers.Dense(**case.arguments)
        for layer in layers:
            layer(x)
        set_random_weights(layers, random)
        for layer in layers:
            change(layer)
        layers[1].set_weights(layers[0].get_weights())
        got, expected = (layer(x).numpy() for layer in layers)
        assert_accurate(got, expected, np.full(got.shape, np.abs(expected).max()), 4 * any_order(8))
    layer = built(case, tf_cpu, "float32", random)[0]
    assert layer.why_not() is None
    layer.quantize("int8")
    assert layer.why_not() == "it is quantized to int8"


@pytest.mark.parametrize("name", ["RMSNormalization", "LayerNormalization", "Softmax"])
def test_inputs_that_are_no_floats(tf_backend, name, random):
    """Layers do not cast integers; Keras's code decides about them."""
    tf, case = tf_backend.tf, Case(name)
    x = tf.constant(random.integers(-5, 5, size=(3, 8)), tf.int32)
    layers = ours(case, "float32"), reference(case, "float32")
    if name == "Softmax":  # Keras refuses
        for layer in layers:
            with pytest.raises((tf.errors.InvalidArgumentError, TypeError, ValueError)):
                layer(x)
        return
    got, expected = (layer(x) for layer in layers)
    assert got.dtype == expected.dtype
    assert_same_bits(got.numpy(), expected.numpy())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("given", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", ["RMSNormalization", "LayerNormalization", "Softmax", "Dense"])
def test_inputs_of_another_dtype(tf_backend, name, given, policy, random):
    """Keras casts the inputs of all layers except LayerNormalization, which casts its output."""
    case = Case(name, {"units": 4, "activation": "gelu"} if name == "Dense" else {})
    layer, keras_layer, exact_layer = built(case, tf_backend, policy, random)
    x = tensors(case, tf_backend, given, random)
    got, expected, exact = layer(x), keras_layer(x), exact_layer(tf_backend.tf.cast(x, "float64"))
    assert got.dtype == expected.dtype
    exact = exact.numpy()
    magnitude = np.full(exact.shape, np.abs(exact).max())
    coarser = max(given, layer.compute_dtype, key=lambda dtype: ml_dtypes.finfo(dtype).eps)
    assert_accurate(got.numpy(), exact, magnitude, 4 * any_order(case.shape[-1]), storage=(STORED, coarser))


def test_activation_functions(tf_cpu):
    """The function itself, not its name, decides if the kernel has it."""
    keras = load_keras()
    import fusedops.tf.keras as fk

    class Activation(keras.layers.Layer):
        def call(self, x):
            return x

    gelu = keras.activations.gelu
    for activation, fused in (
        ("swish", True),
        (keras.activations.silu, True),
        (functools.partial(gelu, approximate=True), True),
        (functools.partial(gelu, approximate=False), True),
        (functools.partial(keras.activations.relu, max_value=6), False),
        (functools.partial(gelu, 1.0), False),
        (lambda x: x, False),
        (Activation(), False),
        (keras.activations.relu6, False),
    ):
        for layer in (fk.Dense(3, activation), fk.GatedDense(3, activation)):
            assert (layer.why_not() is None) == fused, activation


def test_approximate_gelu(tf_backend, random):
    keras = load_keras()
    case = Case("Dense", {"units": 4, "activation": functools.partial(keras.activations.gelu, approximate=True)})
    layer, _, exact_layer = built(case, tf_backend, "float64", random)
    x = tensors(case, tf_backend, "float64", random)
    for got, exact in zip(
        *(value_and_gradients(tf_backend, each, x) for each in (layer, exact_layer)),
        strict=True,
    ):
        assert_accurate(got, exact, np.full(exact.shape, np.abs(exact).max()), 4 * any_order(24))


def test_approximate_gelu_is_saved(tf_cpu, tmp_path):
    keras = load_keras()
    import fusedops.tf.keras as fk

    model = keras.Sequential([keras.Input((4,)), fk.Dense(3, activation=fk.activations.gelu_tanh)])
    model.save(tmp_path / "model.keras")
    layer = keras.saving.load_model(tmp_path / "model.keras").layers[0]
    assert layer.activation is fk.activations.gelu_tanh
    assert layer.why_not() is None


@ALL
def test_config(tf_cpu, case):
    """The config is Keras's, and a layer created from it returns it again."""
    layer = ours(case, "mixed_bfloat16", name="layer")
    config = layer.get_config()
    again = type(layer).from_config(config)
    assert again.get_config() == config
    assert again.why_not() == layer.why_not()
    if case.is_keras:
        keras = load_keras()
        theirs = getattr(keras.layers, case.layer)(**case.arguments, dtype="mixed_bfloat16", name="layer")
        assert config == theirs.get_config()


def test_default_arguments_are_those_of_keras(tf_cpu):
    import inspect

    keras = load_keras()
    import fusedops.tf.keras as fk

    for name in ("RMSNormalization", "LayerNormalization", "Softmax", "Dense", "EinsumDense"):
        mine, theirs = getattr(fk, name), getattr(keras.layers, name)
        assert issubclass(mine, theirs)
        assert inspect.signature(mine) == inspect.signature(theirs)
        assert mine.__init__ is theirs.__init__
        call, their_call = (list(inspect.signature(each.call).parameters) for each in (mine, theirs))
        assert call == their_call


def test_regularizers_constraints_and_initializers(tf_backend, random):
    """They act as in Keras's layers, in GatedDense as in one Dense of both halves."""
    keras = load_keras()

    def weights(first, second):
        return {
            f"{first}_regularizer": "l2",
            f"{second}_regularizer": "l1",
            f"{first}_constraint": "non_neg",
            f"{second}_constraint": keras.constraints.MaxNorm(0.5),
            f"{first}_initializer": keras.initializers.RandomUniform(seed=1),
            f"{second}_initializer": keras.initializers.RandomUniform(seed=2),
        }

    arguments = {
        "LayerNormalization": weights("gamma", "beta"),
        "Dense": {"units": 4, "activation": "gelu", "activity_regularizer": "l2", **weights("kernel", "bias")},
    }
    arguments["GatedDense"] = {**arguments["Dense"], "activation": "relu"}
    for name, given in arguments.items():
        case = Case(name, given)
        x = tensors(case, tf_backend, "float32", random)
        layers = ours(case, "float32"), reference(case, "float32")
        for layer in layers:
            layer(x)
        losses = [np.array([float(loss) for loss in layer.losses]) for layer in layers]
        assert len(losses[0]) >= 2
        terms = int(np.prod(case.shape))
        np.testing.assert_allclose(*losses, rtol=4 * any_order(terms) * np.finfo("float32").eps / 2)
        for mine, theirs in zip(layers[0].weights, layers[1].weights, strict=True):
            assert (mine.name, tuple(mine.shape), mine.dtype) == (theirs.name, tuple(theirs.shape), theirs.dtype)
            assert_same_bits(mine.numpy(), theirs.numpy())
            assert mine.constraint.__class__ is theirs.constraint.__class__
        config = layers[0].get_config()
        assert type(layers[0]).from_config(config).get_config() == config


@CASES
def test_not_trainable(tf_backend, case, random):
    layer = ours(case, "float32", trainable=False)
    layer(tensors(case, tf_backend, "float32", random))
    assert layer.trainable_variables == []
    assert len(value_and_gradients(tf_backend, layer, tensors(case, tf_backend, "float32", random))) >= 2


@CASES
def test_built_before_it_is_called(tf_backend, case, random):
    """Built from shapes alone, as when a model is loaded; the batch may be unknown."""
    shape = (None, *case.shape[1:])
    layer, called = ours(case, "float32"), ours(case, "float32")
    called(tensors(case, tf_backend, "float32", random))
    layer.build([shape, shape] if case.inputs > 1 else shape)
    again = ours(case, "float32")
    again.build_from_config(called.get_build_config() or {})
    set_random_weights([layer, called, again], random)
    x = tensors(case, tf_backend, "float32", random)
    results = [tf_backend.tf.nest.flatten(each(x)) for each in (called, layer, again)]
    for each in results[1:]:
        for got, expected in zip(each, results[0], strict=True):
            assert_same_bits(got.numpy(), expected.numpy())
    assert bool(layer.why_not()) == is_left_to_keras(case)


@ALL
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_symbolic(tf_backend, case, policy, random):
    """In the functional API with unknown batch and sequence sizes: shapes and dtypes of results, and the layer's
    bits."""
    tf, keras = tf_backend.tf, load_keras()
    free = [1] if case.shape[1] != case.shape[-1] and not case.is_fallback and len(case.shape) > 2 else []
    shape = [None if i in free else size for i, size in enumerate(case.shape)][1:]
    if case.arguments.get("feature_axis") == 1:
        shape = list(case.shape[1:])
    symbols = [keras.Input(shape, dtype="float32") for _ in range(case.inputs)]
    layer = ours(case, policy)
    outputs = layer(symbols if case.inputs > 1 else symbols[0])
    model = keras.Model(symbols if case.inputs > 1 else symbols[0], outputs)
    set_random_weights([layer], random)
    x = tensors(case, tf_backend, "float32", random)
    results, alone = tf.nest.flatten(model(x)), tf.nest.flatten(layer(x))
    graph = tf.nest.flatten(tf.function(model)(x))
    for symbol, result, expected, traced in zip(tf.nest.flatten(outputs), results, alone, graph, strict=True):
        assert symbol.dtype == result.dtype.name
        assert len(symbol.shape) == result.shape.rank
        assert all(size in (None, real) for size, real in zip(symbol.shape, result.shape, strict=True))
        assert_same_bits(result.numpy(), expected.numpy())
        magnitude = np.full(expected.shape, np.abs(expected.numpy()).astype(float).max())
        storage = (STORED, layer.compute_dtype)  # graph optimizers may reorder Keras's operations
        assert_accurate(traced.numpy(), expected.numpy(), magnitude, 4 * any_order(case.shape[-1]), storage=storage)


@CASES
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_under_xla(tf_backend, case, policy, random):
    """Values and gradients with an unknown batch."""
    from fusedops.tf import xla

    if xla.fault:
        pytest.skip("the XLA kernels are not loaded")
    tf = tf_backend.tf
    layer = built(case, tf_backend, policy, random)[0]
    if layer.why_not() and case.needs_gpu:
        pytest.skip("Keras's own code, whose products of bfloat16 are inexact on CPUs without AVX-512")
    inputs = tensors(case, tf_backend, layer.compute_dtype, random)
    # in multiples of 1/4 no product is so near 0 that it is rounded across it
    if case.arguments.get("activation") == "relu":
        layer.set_weights([np.rint(4 * weight) / 4 for weight in layer.get_weights()])
        inputs = tf.nest.map_structure(lambda x: tf.round(4 * x) / 4, inputs)
    signature = tf.nest.map_structure(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), inputs)
    compiled = tf.function(layer, input_signature=[signature], jit_compile=True)
    results = (
        value_and_gradients(tf_backend, each, inputs, weights=layer.trainable_variables) for each in (compiled, layer)
    )
    terms = max(case.shape[-1], int(np.prod(case.shape[:-1])))
    for i, (got, expected) in enumerate(zip(*results, strict=True)):
        magnitude = np.full(expected.shape, np.abs(expected).astype(float).max())
        # XLA may keep intermediate values in float32 that eager code rounds to 16 bits
        storage = (STORED, layer.compute_dtype)
        assert_accurate(got, expected, magnitude, 4 * any_order(terms), f"result {i}", storage=storage)


def test_mask_passes(tf_backend):
    """A mask passes from an Embedding through every layer whose Keras version passes it, and through layers that Keras
    lacks."""
    tf, keras = tf_backend.tf, load_keras()
    import fusedops.tf.keras as fk

    tokens = tf.constant([[3, 1, 0, 0], [2, 0, 0, 0]])
    x = keras.layers.Embedding(5, 8, mask_zero=True)(tokens)
    for name in ("LayerNormalization", "Dense"):
        arguments = {"units": 4, "activation": "gelu"} if name == "Dense" else {}
        for package in (fk, keras.layers):
            y = getattr(package, name)(**arguments)(x)
            np.testing.assert_array_equal(y._keras_mask, tokens != 0)
    for layer in (fk.GatedDense(4), fk.RotaryEmbedding()):
        np.testing.assert_array_equal(layer(x)._keras_mask, tokens != 0)
    for layer in (fk.AddLayerNormalization(), fk.AddRMSNormalization()):
        for outputs in (layer([x, tf.ones_like(x)]), layer(x, tf.ones_like(x)), layer((x, x))):
            for y in outputs:
                np.testing.assert_array_equal(y._keras_mask, tokens != 0)
        assert not any(hasattr(y, "_keras_mask") for y in layer(tf.ones_like(x), tf.ones_like(x)))


def test_rms_normalization_drops_the_mask_as_keras_does(tf_cpu):
    keras = load_keras()
    import fusedops.tf.keras as fk

    x = keras.layers.Embedding(5, 8, mask_zero=True)(tf_cpu.tf.constant([[3, 1, 0]]))
    for package in (fk, keras.layers):
        with pytest.warns(UserWarning, match="does not support masking"):
            y = package.RMSNormalization()(x)
        assert getattr(y, "_keras_mask", None) is None


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", ["bool", "int32", "uint8", "float32"])
@pytest.mark.parametrize("shape", [(2, 5, 6), (5, 6), (6,), (1, 1, 6), (2, 5, 1), (5, 1)])
def test_softmax_mask(tf_backend, shape, kind, policy, random):
    """Fully masked rows give zeros."""
    tf = tf_backend.tf
    case = Case("Softmax", shape=(2, 5, 6))
    keep = random.random(size=shape) < 0.5
    keep.flat[: shape[-1]] = False
    layer, keras_layer, exact_layer = built(case, tf_backend, policy, random)
    mask = tf.constant(np.where(keep, 0.75, 0.25).astype(kind) if kind == "float32" else keep.astype(kind))
    x = tensors(case, tf_backend, layer.compute_dtype, random)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, mask=mask)
    assert np.isfinite(tape.gradient(y, x, tf.ones_like(y)).numpy().astype(float)).all()
    expected, exact = keras_layer(x, mask=mask), exact_layer(tf.cast(x, tf.float64), mask=mask)
    assert y.dtype == expected.dtype
    if kind != "bool" and _before("3.13"):  # its elements were factors
        assert_same_bits(y.numpy(), expected.numpy())
        return
    assert not y.numpy()[~np.broadcast_to(keep, case.shape)].any()
    assert_accurate(y.numpy(), exact.numpy(), np.ones(case.shape), 4 * any_order(6))


def test_softmax_takes_the_mask_of_its_input(tf_backend):
    """Keras passes on [batch, columns] for an input of that shape."""
    tf, keras = tf_backend.tf, load_keras()
    import fusedops.tf.keras as fk

    x = tf.constant([[1.0, 2.0, 0.0], [1.0, 0.0, 0.0]])
    results = [layer(keras.layers.Masking()(x[..., None])[..., 0]) for layer in (fk.Softmax(), keras.layers.Softmax())]
    np.testing.assert_allclose(*results, atol=1e-6)
    masked = tf.identity(x)
    masked._keras_mask = x > 0
    results = [layer(masked) for layer in (fk.Softmax(), keras.layers.Softmax())]
    np.testing.assert_allclose(*results, atol=1e-6)
    assert not results[0].numpy()[x.numpy() == 0].any()


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "categorical_crossentropy"])
def test_losses_find_the_logits_before_a_softmax(tf_backend, loss):
    """Keras's losses do not take the logarithm of a probability rounded to 0 or 1."""
    tf, keras = tf_backend.tf, load_keras()
    import fusedops.tf.keras as fk

    logits = tf.constant([[0.0, 60.0, -60.0]])
    labels = tf.constant([2]) if loss.startswith("sparse") else tf.constant([[0.0, 0.0, 1.0]])
    for run in (lambda f: f(), lambda f: tf.function(f)()):
        got = run(lambda: keras.losses.get(loss)(labels, fk.Softmax()(logits)))
        np.testing.assert_allclose(got, [120.0], rtol=1e-6)


def test_losses_find_the_logits_before_a_sigmoid(tf_backend):
    tf, keras = tf_backend.tf, load_keras()
    import fusedops.tf.keras as fk

    layer = fk.Dense(1, activation="sigmoid", kernel_initializer="ones")
    got = keras.losses.binary_crossentropy(tf.constant([[1.0]]), layer(tf.constant([[-60.0]])))
    np.testing.assert_allclose(got, [60.0], rtol=1e-6)


def test_two_inputs(tf_backend, random):
    """As two arguments, a list or a tuple; inputs of two dtypes are cast to the layer's."""
    tf = tf_backend.tf
    for name in ("AddLayerNormalization", "AddRMSNormalization"):
        case = Case(name, inputs=2)
        x, residual = tensors(case, tf_backend, "float32", random)
        layer = ours(case, "mixed_bfloat16")
        expected = layer([x, residual])
        results = layer(x, residual), layer((x, residual)), layer(tf.cast(x, tf.bfloat16), residual)
        for result in results:
            assert isinstance(result, tuple)
            for got, value in zip(result, expected, strict=True):
                assert got.dtype == tf.bfloat16
                assert_same_bits(got.numpy(), value.numpy())
        with pytest.raises(ValueError, match=r"takes two tensors, layer\(x, residual\)"):
            layer(x)


@pytest.mark.parametrize("case", [case for case in FUSED if case.layer == "RotaryEmbedding"], ids=str)
def test_rotary_positions(tf_backend, case, random):
    """A start, one row of positions for all, or a row each; eagerly and in a graph of unknown batch and length."""
    tf = tf_backend.tf
    layer, exact_layer = ours(case, "float64"), reference(case, "float64")
    x = tensors(case, tf_backend, "float64", random)
    length = case.shape[case.arguments.get("sequence_axis", 1)]
    rows = random.integers(0, 50, size=(case.shape[0], length))
    free = [None] * len(case.shape)
    free[case.arguments.get("feature_axis", -1)] = 8
    for given in ({"start_index": 3}, {"positions": rows[0]}, {"positions": rows[:1]}, {"positions": rows}):
        exact = exact_layer(x, **given).numpy()
        made = {key: tf.constant(value) for key, value in given.items()}
        graph = tf.function(lambda x, made=made: layer(x, **made), input_signature=[tf.TensorSpec(free, tf.float64)])
        results = layer(x, **given), layer(x, **made), graph(x)
        for result in results:  # an angle of up to 50 is rounded before its sine is taken
            assert_accurate(result.numpy(), exact, np.full(exact.shape, 50 * np.abs(exact).max()), any_order(8))


@pytest.mark.parametrize("policy", ["float16", "bfloat16", "mixed_float16", "mixed_bfloat16"])
def test_rotary_positions_are_not_rounded(tf_backend, policy, random):
    """The layer's 16 bits could not hold most positions."""
    tf, keras = tf_backend.tf, load_keras()
    case = Case("RotaryEmbedding")
    layer, x = ours(case, policy), tensors(case, tf_backend, "float32", random)
    rows = random.integers(4000, 5000, size=case.shape[:2])
    for name, value in (("start_index", 5001), ("positions", rows)):
        expected = layer(x, **{name: value})
        assert expected.dtype == layer.compute_dtype
        array = np.asarray(value, "float32")
        given = [array, tf.constant(array), array[()], tf.constant(value, tf.int32), keras.Variable(array)]
        for each in given:
            assert_same_bits(layer(x, **{name: each}).numpy(), expected.numpy())
    for dtype in ("float32", "int32"):
        symbols = keras.Input(case.shape[1:]), keras.Input(case.shape[1:2], dtype=dtype)
        model = keras.Model(symbols, layer(symbols[0], positions=symbols[1]))
        assert_same_bits(model([x, tf.constant(rows, dtype)]).numpy(), expected.numpy())
    assert_same_bits(layer(x.numpy(), positions=rows).numpy(), expected.numpy())


def test_rotary_errors(tf_cpu):
    tf = tf_cpu.tf
    import fusedops.tf.keras as fk

    with pytest.raises(ValueError, match="features must be a known, even number; got 7"):
        fk.RotaryEmbedding()(tf.ones([2, 3, 7]))
    for axes in ({"sequence_axis": 3}, {"sequence_axis": -1}, {"sequence_axis": 0}, {"feature_axis": 5}):
        with pytest.raises(ValueError, match="must be two dimensions behind the first, the batch"):
            fk.RotaryEmbedding(**axes)(tf.ones([2, 3, 8]))
    for shape, sentence in (((8,), "must be two dimensions behind"), ((3, 7), "got 7"), ((3, None), "got None")):
        with pytest.raises(ValueError, match=sentence):
            fk.RotaryEmbedding()(load_keras().Input(shape))


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("name", ["AddLayerNormalization", "AddRMSNormalization"])
def test_wrong_inputs_of_an_added_normalization(tf_backend, name, axis):
    """Symbolic and eager tensors, including shapes that Keras's own code would broadcast."""
    tf, keras = tf_backend.tf, load_keras()
    case = Case(name, {"axis": axis})
    for make in (lambda shape: keras.Input(shape[1:]), tf.ones):
        x, other, thin = make((4, 8, 8)), make((4, 5, 8)), make((4, 8, 1))
        for inputs in ([x], [[x, x, x]], [{"x": x}]):
            with pytest.raises(ValueError, match=r"takes two tensors, layer\(x, residual\)"):
                ours(case, "float32")(*inputs)
        for residual in (other, thin):
            for inputs in ([x, residual], [[x, residual]]):
                with pytest.raises(ValueError, match=r"residual must have x's shape, \[.*, 8, 8\]; got \["):
                    ours(case, "float32")(*inputs)
    layer = ours(case, "float32")
    layer.build((4, 8, 8))
    graph = tf.function(layer, input_signature=[[tf.TensorSpec([None, 8, 8])] * 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        graph([tf.ones([4, 8, 8]), tf.ones([1, 8, 8])])


@pytest.mark.parametrize("name", ["RMSNormalization", "LayerNormalization", "Softmax"])
def test_ragged_tensors_are_left_to_keras(tf_backend, name, random):
    tf, keras = tf_backend.tf, load_keras()
    import fusedops.tf.keras as fk

    x = tf.RaggedTensor.from_row_lengths(tensors(Case(name, shape=(5, 8)), tf_backend, "float32", random), [2, 3])
    layer = getattr(keras.layers, name)()
    expected = layer(x)
    converted(fk, layer)
    assert type(layer) is getattr(fk, name)
    got = layer(x)
    assert layer.why_not(x) == "the input is a RaggedTensor"
    assert layer.why_not(x.values) is None
    assert isinstance(got, tf.RaggedTensor)
    assert_same_bits(got.values.numpy(), expected.values.numpy())


@pytest.mark.parametrize("units", [0, -1, 2.0, True, None])
def test_units_of_a_gated_dense(tf_cpu, units):
    import fusedops.tf.keras as fk

    with pytest.raises(ValueError, match="units must be a positive int"):
        fk.GatedDense(units)


def test_weights_are_used_as_they_are_stored(tf_backend, random):
    """Under a mixed policy float32 weights are not rounded to the input's 16 bits: only the result is."""
    tf = tf_backend.tf
    for name in ("RMSNormalization", "LayerNormalization", "AddRMSNormalization", "AddLayerNormalization"):
        case = Case(name, inputs=2 if name.startswith("Add") else 1)
        layer, _, exact_layer = built(case, tf_backend, "mixed_bfloat16", random)
        fine = [random.normal(size=weight.shape).astype(np.float32) for weight in layer.weights]
        layer.set_weights(fine)
        exact_layer.set_weights(fine)
        inputs = tensors(Case(name), tf_backend, "bfloat16", random)
        inputs = [inputs, inputs] if case.inputs > 1 else inputs  # their sum is not rounded
        y, exact = (
            tf.nest.flatten(each(tf.nest.map_structure(lambda x, dtype=dtype: tf.cast(x, dtype), inputs)))[0].numpy()
            for each, dtype in ((layer, "bfloat16"), (exact_layer, "float64"))
        )
        assert_accurate(y, exact, np.full(exact.shape, np.abs(exact).max()), 4 * any_order(8), name)


def test_a_converted_layer_is_one_of_ours(tf_backend, random):
    """Only the class differs, built or not."""
    for case in (case for case in FUSED if case.is_keras):
        x = tensors(case, tf_backend, "float32", random)
        original, mine = getattr(load_keras().layers, case.layer), ours(case, "float32")
        early, late = (original(**case.arguments) for _ in range(2))
        early(x)
        for layer in (early, late):
            layer.__class__ = type(mine)
        mine(x), late(x)
        set_random_weights([early, late, mine], random)
        expected = mine(x).numpy()
        for layer in (early, late):
            assert layer.supports_jit == mine.supports_jit
            assert_same_bits(layer(x).numpy(), expected)
            layer.__class__ = original
            assert layer.supports_jit is True
            np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-5)


def test_supports_jit(tf_cpu, monkeypatch):
    """Without the operators in XLA, only layers computed by Keras's own code support jit; layers set to False never
    do."""
    from fusedops.tf import xla

    for fault in (None, "the library is not there"):
        monkeypatch.setattr(xla, "fault", fault)
        for case in FUSED + FALLBACKS:
            layer = ours(case, "float32")
            if case.layer != "Softmax":  # a Softmax is never built, and does not know its rank
                layer.build([case.shape] * 2 if case.inputs > 1 else case.shape)
                assert layer.supports_jit == (fault is None or is_left_to_keras(case))
            layer.supports_jit = False
            assert not layer.supports_jit
    keras = load_keras()
    model = keras.Sequential([keras.Input((8,)), ours(Case("LayerNormalization"), "float32")])
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        model.compile("sgd", "mse", jit_compile=True)
    assert model.jit_compile is False


def test_an_import_without_keras(tf_cpu, monkeypatch):
    """The error names the missing package and the remedy."""
    keras = load_keras()
    from fusedops.keras_layers import versions

    versions.require("fusedops.tf.keras", "tensorflow")
    for target, name, value, sentence in (
        (keras.backend, "backend", lambda: "jax", "it runs on jax. Set KERAS_BACKEND=tensorflow before"),
        (keras, "__version__", "2.15.0", "needs Keras 3.12 or newer, and Keras 2.15.0 is installed. Run: pip install"),
        (keras, "__version__", "3.11.3", "needs Keras 3.12 or newer, and Keras 3.11.3 is installed. Run: pip install"),
    ):
        with monkeypatch.context() as patch, pytest.raises(ImportError, match=sentence):
            patch.setattr(target, name, value)
            versions.require("fusedops.tf.keras", "tensorflow")
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(
        ImportError, match=r"fusedops\.keras needs Keras's TensorFlow or JAX backend; it runs on torch\."
    ):
        versions.require("fusedops.keras", *versions.PACKAGES)
    monkeypatch.setitem(sys.modules, "keras", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"needs Keras 3\.12 or newer, which is not installed\. Run"):
        versions.require("fusedops.tf.keras", "tensorflow")


@pytest.mark.parametrize("module, name", [("backend", "AutocastScope"), ("losses.loss", "reduce_weighted_values")])
def test_a_keras_whose_own_modules_have_changed(tf_cpu, monkeypatch, module, name):
    keras = load_keras()
    from fusedops.keras_layers import internals

    monkeypatch.setattr(keras, "__version__", "3.99.0")
    monkeypatch.delattr(f"keras.src.{module}.{name}")
    with pytest.raises(ImportError, match=rf"with Keras 3\.12 to 3\.15, and Keras 3\.99\.0.*{name}.*Run: pip install"):
        runpy.run_path(internals.__file__)


def test_the_pinned_versions_of_keras_are_among_the_tested(tf_cpu):
    load_keras()
    from fusedops.keras_layers import versions

    pinned = re.findall(r"^keras==(\S+);", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert sorted(map(loading.release, pinned)) == [
        loading.release(each) for each in (versions.OLDEST, versions.NEWEST)
    ]


def test_numbers_survive_every_dtype(random):
    """The tolerances rely on this."""
    x = numbers((100,), random)
    for dtype in ("float32", "float16"):
        assert_same_bits(x.astype(dtype).astype(float), x)
