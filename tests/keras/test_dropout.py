"""The Keras layers with dropout: Keras's own results without training, and in training the functions, with the seeds of
the layer's generator."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest

from tests.helpers.converting import converted
from tests.helpers.keras_models import policy, values
from tests.helpers.numerics import assert_same_bits

RATE = 0.25
SHAPE = (64, 48)
LAYERS = ("Dropout", "DropoutAdd", "AddRMSNormalization", "AddLayerNormalization")
POLICIES = ("float64", "float32", "bfloat16", "mixed_float16")
ALL = pytest.mark.parametrize("name", LAYERS)


def layer_of(fk, name, **options):
    return getattr(fk, name)(**{"dropout" if "Norm" in name else "rate": RATE, "seed": 5, **options})


def tensors(tf, name, dtype="float32"):
    x = np.linspace(1, 2, SHAPE[0] * SHAPE[1]).reshape(SHAPE)
    arrays = [x] if name == "Dropout" else [x, 3 * np.cos(x)]
    return [tf.cast(array, dtype) for array in arrays]


def run(tf, function, inputs):
    """The outputs and the gradients of the inputs."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = tf.nest.flatten(function(*inputs))
        upstream = [tf.cast(tf.reshape(tf.linspace(-1.0, 1.0, tf.size(y)), y.shape), y.dtype) for y in outputs]
    return [*outputs, *tape.gradient(outputs, inputs, upstream)]


def assert_equal(got, expected):
    for x, y in zip(got, expected, strict=True):
        assert_same_bits(np.asarray(x), np.asarray(y))


def function_of(fo, layer, name, seed):
    """The layer as a call of the public function."""
    weights, options = [weight.value for weight in layer.weights], {"dropout": RATE, "seed": seed}
    return {
        "Dropout": lambda x: fo.dropout(x, RATE, seed),
        "DropoutAdd": lambda x, residual: fo.dropout_add(x, residual, RATE, seed),
        "AddRMSNormalization": lambda x, residual: fo.add_rms_norm(x, residual, *weights, eps=1e-6, **options),
        "AddLayerNormalization": lambda x, residual: fo.add_layer_norm(x, residual, *weights, eps=1e-3, **options),
    }[name]


@ALL
@pytest.mark.parametrize("dtype", POLICIES)
def test_training_equals_the_function(tf_backend, fk, name, dtype):
    """For each call, the key is the layer's seed, and the offset is the number of the call."""
    tf, fo, layer = tf_backend.tf, tf_backend.functions, layer_of(fk, name, dtype=dtype)
    inputs = tensors(tf, name, layer.compute_dtype)
    layer(*inputs)
    for call in range(3):
        got = run(tf, lambda *x: layer(*x, training=True), inputs)
        assert_equal(got, run(tf, function_of(fo, layer, name, (5, call)), inputs))
        np.testing.assert_array_equal(layer.seed_generator.state, [5, call + 1])


@ALL
def test_without_training(tf_backend, fk, name):
    tf, layer = tf_backend.tf, layer_of(fk, name)
    inputs = tensors(tf, name)
    plain = values(layer_of(fk, name, **{"dropout" if "Norm" in name else "rate": 0.0})(*inputs, training=True))
    for options in ({}, {"training": False}):
        assert_equal(values(layer(*inputs, **options)), plain)
    np.testing.assert_array_equal(layer.seed_generator.state, [5, 0])
    if name == "Dropout":
        assert_equal(plain, inputs)


@ALL
@pytest.mark.parametrize("jit_compile", [False, True])
def test_in_graphs(tf_backend, fk, name, jit_compile):
    """Each run draws new numbers, the same as eager calls."""
    from fusedops.tf import xla

    if jit_compile and xla.fault:
        pytest.skip(xla.fault)
    tf, layer, eager = tf_backend.tf, layer_of(fk, name), layer_of(fk, name)
    inputs = tensors(tf, name)
    layer(*inputs), eager(*inputs)
    compiled = tf.function(lambda *x: run(tf, lambda *x: layer(*x, training=True), x), jit_compile=jit_compile)
    runs = [compiled(*inputs) for _ in range(2)]
    for got in runs:
        assert_equal(got, run(tf, lambda *x: eager(*x, training=True), inputs))
    assert (runs[0][0].numpy() != runs[1][0].numpy()).any()


def test_means_and_masks(tf_backend, fk):
    """The number of dropped elements follows a binomial distribution."""
    tf, x = tf_backend.tf, tf_backend.tf.ones((1000, 1000))
    y, gradient = run(tf, lambda x: tf.reduce_sum(fk.Dropout(RATE, seed=1)(x, training=True)), [x])
    y = gradient.numpy()  # the upstream gradient of a single number is -1
    assert set(np.unique(y)) == {0.0, -np.float32(1 / (1 - RATE))}
    assert abs((y == 0).mean() - RATE) < 5 * (RATE * (1 - RATE) / y.size) ** 0.5


@ALL
def test_configs_and_files(tf_backend, keras, fk, name, tmp_path):
    """A loaded model starts with its seed, like one of Keras's."""
    tf = tf_backend.tf
    layer = layer_of(fk, name)
    symbols = [keras.Input(SHAPE[1:]) for _ in tensors(tf, name)]
    model = keras.Model(symbols, layer(*symbols))
    inputs = tensors(tf, name)
    model(inputs, training=True)
    assert type(layer).from_config(layer.get_config()).get_config() == layer.get_config()
    model.save(tmp_path / "model.keras")
    layer.seed_generator.state.assign([5, 0])
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[-1]) is type(layer)
    assert_equal(values(loaded(inputs, training=True)), values(model(inputs, training=True)))


def test_set_random_seed_repeats(tf_backend, keras, fk):
    x = tensors(tf_backend.tf, "Dropout")
    results = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        results.append(fk.Dropout(RATE)(*x, training=True).numpy())
    assert_same_bits(results[0], results[1])
    assert (results[0] != results[2]).any()


def test_calls_left_to_keras(tf_backend, keras, fk):
    tf, (x,) = tf_backend.tf, tensors(tf_backend.tf, "Dropout")
    for options, given, reason in (
        ({"rate": RATE, "noise_shape": (64, 1)}, x, "noise_shape is set"),
        ({"rate": 0.0}, x, "rate is 0: it drops nothing"),
        ({"rate": 1.0}, x, "rate is 1: it drops everything"),
    ):
        layers = [package.Dropout(**options, seed=3) for package in (fk, keras.layers)]
        assert layers[0].why_not(given) == reason
        assert_same_bits(*(layer(given, training=True).numpy() for layer in layers))
    assert_same_bits(fk.DropoutAdd(1.0)(x, x, training=True).numpy(), x.numpy())
    ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
    assert fk.Dropout(RATE).why_not(ragged) == "the input is a RaggedTensor"


def test_refused_arguments(tf_backend, fk):
    x = tf_backend.tf.ones((2, 3))
    for kind in (fk.AddRMSNormalization, fk.AddLayerNormalization):
        for rate in (1.0, -0.1):
            sentence = f"fusedops.tf.keras.{kind.__name__}: dropout must be a probability in [0, 1); got {rate}"
            with pytest.raises(ValueError, match=re.escape(sentence)):
                kind(dropout=rate)
    for call in (lambda: fk.DropoutAdd(0.1)(x), lambda: fk.DropoutAdd(0.1)([x, x, x])):
        with pytest.raises(ValueError, match=r"fusedops\.tf\.keras: a layer over a sum takes two tensors"):
            call()
    with pytest.raises(
        ValueError, match=re.escape("fusedops.tf.keras: residual must have x's shape, [2, 3]; got [2, 4]")
    ):
        fk.DropoutAdd(0.1)(x, tf_backend.tf.ones((2, 4)))


def test_convert_and_revert(tf_backend, keras, fk, capsys):
    (x,) = tensors(tf_backend.tf, "Dropout")
    layers = [keras.layers.Dropout(RATE, seed=4), keras.layers.Dropout(RATE, noise_shape=(64, 1), name="rows")]
    model = keras.Sequential(
        [keras.Input(SHAPE[1:]), *layers, keras.layers.Dropout(0.0, name="nothing")], name="example"
    )
    plain = model(x).numpy()
    config, first = layers[0].get_config(), layers[0](x, training=True).numpy()
    fk.convert(model)
    assert capsys.readouterr().out.splitlines() == [
        "fusedops: 1 of 3 layers of 'example' replaced",
        "     1 Dropout -> fusedops.keras_layers.dropout.Dropout",
        "  kept Dropout 'rows': noise_shape is set",
        "  kept Dropout 'nothing': rate is 0: it drops nothing",
        "  with the same seed, dropout drops other elements than before: its random numbers are fusedops's",
    ]
    assert type(layers[0]) is fk.Dropout and layers[0].get_config() == config
    assert_same_bits(model(x).numpy(), plain)
    np.testing.assert_array_equal(layers[0].seed_generator.state, [4, 1])
    expected = tf_backend.functions.dropout(x, RATE, (4, 1))
    assert_same_bits(layers[0](x, training=True).numpy(), expected.numpy())
    fk.revert(model)
    assert type(layers[0]) is keras.layers.Dropout
    layers[0].seed_generator.state.assign([4, 0])
    assert_same_bits(layers[0](x, training=True).numpy(), first)


@pytest.fixture
def encoder(keras):
    """Builders of KerasHub layers with dropout, and their inputs."""
    if importlib.util.find_spec("keras_hub") is None:
        pytest.skip("keras_hub is not installed")
    import keras_hub

    def make(normalize_first):
        layer = keras_hub.layers.TransformerEncoder(24, 2, dropout=0.5, normalize_first=normalize_first)
        layer(keras.ops.ones((2, 6, 16)))
        return layer

    return make


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("normalize_first", [False, True])
def test_a_block_drops_in_the_pass_of_its_sums(tf_backend, keras, fk, encoder, normalize_first, dtype, monkeypatch):
    """The block drops the elements that its layers would drop if called separately, as in a lookalike."""
    tf, fo = tf_backend.tf, tf_backend.functions
    with policy(keras, dtype):
        layer = encoder(normalize_first)
    layer._self_attention_layer._dropout = 0.0  # attention has its own dropout
    converted(fk, layer)
    seeds = [part.seed_generator.state for part in (layer._self_attention_dropout, layer._feedforward_dropout)]
    names = []
    for name in ("dropout", "dropout_add", "add_layer_norm"):
        original = getattr(fo, name)

        def call(*args, _original=original, _name=name, **kwargs):
            names.append(_name if not kwargs.get("dropout") else f"{_name} with dropout")
            return _original(*args, **kwargs)

        monkeypatch.setattr(fo, name, call)
    x = tf.cast(tf.random.normal((2, 6, 16), seed=1), layer.compute_dtype)
    results = []
    for fused in (True, False):
        for seed in seeds:
            seed.assign([9, 0])
        kind = fk.Dropout if fused else type("Mine", (fk.Dropout,), {})
        for part in (layer._self_attention_dropout, layer._feedforward_dropout):
            object.__setattr__(part, "__class__", kind)
        names.clear()
        results.append(run(tf, lambda x: layer(x, training=True), [x]))
        if fused:
            last = "dropout_add" if normalize_first else "add_layer_norm with dropout"
            assert names == ["add_layer_norm with dropout", last]
        else:
            assert names.count("dropout") == 2 and {"dropout_add", "add_layer_norm with dropout"}.isdisjoint(names)
        for seed in seeds:
            np.testing.assert_array_equal(seed, [9, 1])
    eps = 2.0**-23 if dtype == "float32" else 2.0**-8
    for got, expected in zip(*results, strict=True):
        scale = np.abs(np.float64(expected)).max()
        np.testing.assert_allclose(np.float64(got), np.float64(expected), rtol=0, atol=32 * eps * scale)
    names.clear()
    layer(x)
    assert not any(name.startswith("dropout") for name in names)
