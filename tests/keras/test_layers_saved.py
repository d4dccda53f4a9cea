"""Keras models with the layers: saved, loaded with Keras's classes and back, exported and served."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.keras_layers import (  # noqa: F401
    FUSED,
    Case,
    load_keras,
    numbers,
    ours,
    products_of_float32,
    set_random_weights,
    tensors,
)
from tests.helpers.numerics import assert_same_bits
from tests.helpers.running import ROOT, environment, interpreter

KERAS = ("RMSNormalization", "LayerNormalization", "Softmax", "Dense")


def layers_of(package, names):
    arguments = {"Dense": {"units": 16, "activation": "gelu"}, "GatedDense": {"units": 16, "activation": "gelu_tanh"}}
    return [getattr(package, name)(**arguments.get(name, {}), name=name.lower()) for name in names]


def sequential(package, names, random=None):
    keras = load_keras()
    model = keras.Sequential([keras.Input((None, 8)), *layers_of(package, names)])
    if random is not None:
        set_random_weights([model], random)
    return model


def packages():
    import fusedops.tf.keras

    return fusedops.tf.keras, load_keras().layers


@pytest.mark.parametrize("case", FUSED, ids=str)
def test_saved_and_loaded(tf_backend, case, tmp_path, random):
    tf, keras = tf_backend.tf, load_keras()
    symbols = [keras.Input(case.shape[1:]) for _ in range(case.inputs)]
    layer = ours(case, "mixed_bfloat16")
    inputs = symbols if case.inputs > 1 else symbols[0]
    model = keras.Model(inputs, layer(inputs))
    set_random_weights([layer], random)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[-1]) is type(layer)
    x = tensors(case, tf_backend, "float32", random)
    for got, expected in zip(tf.nest.flatten(loaded(x)), tf.nest.flatten(model(x)), strict=True):
        assert_same_bits(got.numpy(), expected.numpy())
    model.save_weights(tmp_path / "model.weights.h5")
    set_random_weights([loaded], random)
    loaded.load_weights(tmp_path / "model.weights.h5")
    for got, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
        assert_same_bits(got, expected)


@pytest.mark.parametrize("towards", ["ours", "Keras's"])
def test_loaded_models_are_cloned_into_the_other_package(tf_backend, towards, tmp_path, random):
    """While loading, Keras permits no substitute for its own layers, nor for registered ones."""
    keras, (start, end) = load_keras(), packages()[:: 1 if towards == "Keras's" else -1]
    model = sequential(start, KERAS, random)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    clone = keras.models.clone_model(
        loaded, clone_function=lambda layer: getattr(end, type(layer).__name__).from_config(layer.get_config())
    )
    clone.set_weights(loaded.get_weights())
    x = tensors(Case("", shape=(2, 5, 8)), tf_backend, "float32", random)
    np.testing.assert_allclose(clone(x), model(x), rtol=1e-4, atol=1e-5)
    assert [type(layer) for layer in clone.layers] == [getattr(end, name) for name in KERAS]
    for got, expected in zip(clone.weights, model.weights, strict=True):
        assert got.path.split("/")[-2:] == expected.path.split("/")[-2:]
        assert_same_bits(got.numpy(), expected.numpy())


def test_a_compiled_model_keeps_its_loss(tf_backend, tmp_path, random):
    keras, (mine, _) = load_keras(), packages()
    model = sequential(mine, KERAS[:2], random)
    model.compile("sgd", mine.SparseCategoricalCrossentropy(from_logits=True, ignore_class=3))
    data = numbers((4, 5, 8), random).astype("float32"), random.integers(0, 8, size=(4, 5))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.loss) is mine.SparseCategoricalCrossentropy
    assert loaded.loss.get_config() == model.loss.get_config()
    assert loaded.evaluate(*data, verbose=0) == model.evaluate(*data, verbose=0)


def test_weights_files_fit_both(tf_cpu, tmp_path, random):
    for start, end in (packages(), packages()[::-1]):
        model, other = sequential(start, KERAS, random), sequential(end, KERAS)
        model.save_weights(tmp_path / "model.weights.h5")
        other.load_weights(tmp_path / "model.weights.h5")
        for got, expected in zip(other.get_weights(), model.get_weights(), strict=True):
            assert_same_bits(got, expected)


@pytest.mark.parametrize("name", ["MultiHeadAttention", "GroupQueryAttention"])
def test_weights_files_of_attention_fit_both(tf_cpu, name, tmp_path, random):
    """Their paths have names of classes, of which the inner layers are found."""
    keras, sizes = load_keras(), {"MultiHeadAttention": (2, 4), "GroupQueryAttention": (4, 4, 2)}[name]
    x = keras.Input((3, 8))
    mine, theirs = (keras.Model(x, getattr(package, name)(*sizes)(x, x)) for package in packages())
    for start, end in ((mine, theirs), (theirs, mine)):
        set_random_weights([start], random)
        start.save_weights(tmp_path / "model.weights.h5")
        end.load_weights(tmp_path / "model.weights.h5")
        for got, expected in zip(end.get_weights(), start.get_weights(), strict=True):
            assert_same_bits(got, expected)


WITHOUT_FUSEDOPS = """
import sys
import keras, numpy as np
folder = sys.argv[1]
classes = {f"fusedops>{name}": getattr(keras.layers, name) for name in sys.argv[2:]}
model = keras.saving.load_model(folder + "/model.keras", custom_objects=classes)
np.save(folder + "/keras.npy", model(np.load(folder + "/x.npy")))
assert not [name for name in sys.modules if name.startswith("fusedops")]
"""

SERVING = """
import sys
import numpy as np
import fusedops.tf, tensorflow as tf
folder = sys.argv[1]
served = tf.saved_model.load(folder + "/exported")
np.save(folder + "/served.npy", served.serve(np.load(folder + "/x.npy")))
assert "fusedops.tf.keras" not in sys.modules
fusedops.tf.keras.Softmax  # on first use
"""


def run(code, *arguments):
    done = interpreter("-c", code, *arguments, env=environment("cpu"), cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_files_go_to_other_processes(tf_cpu, tmp_path, random):
    """A process without fusedops loads the model with Keras's layers; one with fusedops.tf alone serves it."""
    model = sequential(packages()[0], KERAS, random)
    x = tensors(Case("", shape=(2, 5, 8)), tf_cpu, "float32", random).numpy()
    np.save(tmp_path / "x.npy", x)
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "exported", verbose=False)
    run(WITHOUT_FUSEDOPS, tmp_path, *KERAS)
    run(SERVING, tmp_path)
    expected = model(x).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "keras.npy"), expected, rtol=1e-4, atol=1e-5)
    assert_same_bits(np.load(tmp_path / "served.npy"), expected)


def test_exported(tf_backend, tmp_path, random):
    """All layers in one SavedModel with unknown batch and length."""
    tf, keras = tf_backend.tf, load_keras()
    fk = packages()[0]
    x = inputs = keras.Input((None, 8))
    for layer in layers_of(fk, [*KERAS[:3], "RotaryEmbedding"]):
        x = layer(x)
    first, s = fk.AddRMSNormalization()([x, inputs])
    second, s = fk.AddLayerNormalization()([first, s])
    gated, dense = layers_of(fk, ["GatedDense", "Dense"])
    model = keras.Model(inputs, [dense(gated(second)), s])
    set_random_weights([model], random)
    model.export(tmp_path / "model", verbose=False)
    served = tf.saved_model.load(tmp_path / "model")
    for shape in ((2, 5, 8), (1, 9, 8)):
        x = tensors(Case("", shape=shape), tf_backend, "float32", random)
        for got, expected in zip(served.serve(x), model(x), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
