"""fk.Experts: the function over the layer's weights, in saved and functional models."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.numerics import numbers


@pytest.fixture
def call(tf_backend, random):
    index = random.integers(0, 5, (3, 6, 2))  # of four experts
    arrays = numbers((3, 6, 8), random), index, numbers(index.shape, random)
    return [
        tf_backend.tf.constant(x.astype(kind)) for x, kind in zip(arrays, ("float32", "int64", "float32"), strict=True)
    ]


@pytest.mark.parametrize(
    "options", [{}, {"use_bias": True, "activation": "gelu", "limit": 2.0, "interleaved": True}], ids=str
)
def test_function_and_config(tf_backend, fk, call, options):
    import fusedops.tf as fo

    layer = fk.Experts(4, 5, bias_initializer="ones", **options)
    y = layer(*call)
    own = {x: options[x] for x in ("limit", "interleaved") if x in options}
    biases = (layer.gate_up_bias, layer.down_bias) if options else (None, None)
    expected = fo.experts(
        *call,
        layer.gate_up.value,
        layer.down.value,
        activation=options.get("activation", "silu"),
        gate_up_bias=None if biases[0] is None else biases[0].value,
        down_bias=None if biases[1] is None else biases[1].value,
        transpose_weight=False,
        **own,
    )
    np.testing.assert_array_equal(y, expected)
    again = type(layer).from_config(layer.get_config())
    again.build(*(x.shape for x in call))
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(*call), y)


def test_saved_functional_model(tf_backend, fk, call, tmp_path):
    import keras

    inputs = [keras.Input(x.shape[1:], dtype=x.dtype.name) for x in call]
    model = keras.Model(inputs, fk.Experts(4, 5, shift=1.0)(*inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(call), model(call))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("place", ["positional", "keyword", "array", "functional"])
def test_router_weights_are_not_rounded(tf_backend, fk, call, policy, place):
    """The result and the gradient of the function over float32 weights, which 16 bits could not hold."""
    import keras

    import fusedops.tf as fo

    tf = tf_backend.tf
    inputs, index, weight = call
    weight = weight + 2.0**-14
    layer = fk.Experts(4, 5, dtype=policy)
    if place == "functional":
        ends = [keras.Input(x.shape[1:], dtype=x.dtype.name) for x in call]
        function = keras.Model(ends, layer(*ends))
    else:
        layer.build(*(x.shape for x in call))
        function = layer
    given = layer.compute_dtype
    with tf.GradientTape() as tape:
        tape.watch(weight)
        if place == "keyword":
            y = function(inputs, index=index, weight=weight)
        elif place == "array":
            y = function(*(x.numpy() for x in (inputs, index, weight)))
        else:
            y = function([inputs, index, weight]) if place == "functional" else function(inputs, index, weight)
    matrices = [tf.cast(x.value, given) for x in (layer.gate_up, layer.down)]
    with tf.GradientTape() as own:
        own.watch(weight)
        expected = fo.experts(tf.cast(inputs, given), index, weight, *matrices, transpose_weight=False)
    np.testing.assert_array_equal(y, expected)
    rounded = fo.experts(tf.cast(inputs, given), index, tf.cast(weight, given), *matrices, transpose_weight=False)
    assert y.dtype == given and not np.array_equal(y, rounded)
    if place != "array":
        np.testing.assert_array_equal(tape.gradient(y, weight), own.gradient(expected, weight))


@pytest.mark.parametrize("kind", ["float16", "float64"])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_router_weights_of_other_dtypes(tf_backend, fk, call, policy, kind):
    """They become float32, as every input of a layer becomes one dtype."""
    layer = fk.Experts(4, 5, dtype=policy)
    weight = tf_backend.tf.cast(call[2], kind)
    y = layer(*call[:2], weight)
    np.testing.assert_array_equal(y, layer(*call[:2], tf_backend.tf.cast(weight, "float32")))


def test_scale_of_weights(fk):
    """Each expert has the weights of a layer of its own: the variance of lecun_uniform is 1 / columns."""
    layer = fk.Experts(64, 32)
    layer.build((1, 48))
    for weight, columns in ((layer.gate_up, 48), (layer.down, 32)):
        found = np.asarray(weight)
        assert np.var(found) * columns == pytest.approx(1, abs=4 * (2 / found.size) ** 0.5)


def test_unknown_activation(fk):
    with pytest.raises(ValueError, match="Experts: activation elu is not among those of the kernel"):
        fk.Experts(4, 5, activation="elu")
