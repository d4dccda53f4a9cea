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
