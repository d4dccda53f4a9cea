"""Models of the Keras layers in `fit`: eagerly, in graphs and under XLA, compared with Keras's own."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.keras_layers import load_keras, products_of_float32, set_random_weights  # noqa: F401

ALL_WAYS = ({"jit_compile": False}, {"jit_compile": "auto"}, {"jit_compile": True}, {"run_eagerly": True})
OF_BOTH = [(policy, way) for policy in ("float32", "mixed_bfloat16") for way in ALL_WAYS]


def ways(cases):
    ids = ["-".join([policy, *(f"{key}={value}" for key, value in way.items())]) for policy, way in cases]
    return pytest.mark.parametrize(("policy", "way"), cases, ids=ids)


VOCABULARY, CLASSES = 17, 5


def skip_without_xla(way):
    from fusedops.tf import xla

    if way.get("jit_compile") is True and xla.fault:
        pytest.skip("the XLA kernels are not loaded")


def classifier(layers, losses, keras, policy):
    """A model of the layers that Keras has as well: `layers` and `losses` are Keras's packages or fusedops's."""
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, 16, dtype=policy)(tokens)
    x = layers.LayerNormalization(dtype=policy)(x)
    x = layers.Dense(32, activation="gelu", dtype=policy)(x)
    shares = layers.Softmax(axis=1, dtype=policy)(layers.Softmax(dtype=policy)(x))
    x = layers.RMSNormalization(dtype=policy)(keras.layers.Add(dtype=policy)([x, shares]))
    model = keras.Model(tokens, layers.Dense(CLASSES, dtype=policy)(x))
    return model, losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)


def block(fk, keras, policy):
    """A block of the layers that Keras lacks, with residual connections."""
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, 16, mask_zero=True, dtype=policy)(tokens)
    h, s = fk.AddRMSNormalization(dtype=policy)([x, fk.RotaryEmbedding(dtype=policy)(x)])
    h, s = fk.AddLayerNormalization(dtype=policy)([fk.GatedDense(16, dtype=policy)(h), s])
    model = keras.Model(tokens, keras.layers.Dense(CLASSES, dtype=policy)(keras.layers.Add(dtype=policy)([h, s])))
    return model, fk.SparseCategoricalCrossentropy(from_logits=True)


def batches(random):
    """Tokens, and labels that follow from them."""
    tokens = random.integers(1, VOCABULARY, size=(32, 6)).astype(np.int32)
    tokens[:, 4:] *= random.integers(0, 2, size=(32, 2)).astype(np.int32)
    return tokens, tokens * 2 % CLASSES


def train(keras, model, loss, data, way):
    model.compile(keras.optimizers.SGD(0.1), loss, weighted_metrics=[], **way)
    return model.fit(*data, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]


@ways(OF_BOTH)
def test_fit_beside_keras(tf_backend, way, policy, random):
    """With the same weights, the losses of Keras's own layers in every step."""
    skip_without_xla(way)
    keras = load_keras()
    import fusedops.tf.keras as fk

    data = batches(random)
    mine, theirs = classifier(fk, fk, keras, policy), classifier(keras.layers, keras.losses, keras, policy)
    set_random_weights([mine[0], theirs[0]], random)
    got, expected = (train(keras, *each, data, way) for each in (mine, theirs))
    assert got[-1] < 0.9 * got[0]
    # Errors of one step enter the next: 12 steps of a few roundings each.
    np.testing.assert_allclose(got, expected, rtol=12 * 8 * (2**-9 if policy == "mixed_bfloat16" else 2**-24))


@ways([*OF_BOTH, ("mixed_float16", {"jit_compile": False})])  # Keras scales its loss in every mode
def test_fit_of_the_other_layers(tf_backend, way, policy, random):
    skip_without_xla(way)
    keras = load_keras()
    import fusedops.tf.keras as fk

    keras.utils.set_random_seed(1)
    model, loss = block(fk, keras, policy)
    history = train(keras, model, loss, batches(random), way)
    assert np.isfinite(history).all()
    assert history[-1] < 0.9 * history[0]


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_ways_agree(tf_backend, policy, random):
    """The kernels are the same; TensorFlow's products and sums may differ."""
    keras = load_keras()
    import fusedops.tf.keras as fk

    data, histories = batches(random), []
    for way in ({"run_eagerly": True}, {"jit_compile": False}):
        keras.utils.set_random_seed(1)
        histories.append(train(keras, *block(fk, keras, policy), data, way))
    np.testing.assert_allclose(*histories, rtol=12 * 8 * (2**-9 if policy == "mixed_bfloat16" else 2**-24))


def test_gradient_tape(tf_backend, random):
    """A hand-written training step changes every weight."""
    tf, keras = tf_backend.tf, load_keras()
    import fusedops.tf.keras as fk

    tokens, labels = batches(random)
    for make in (lambda: classifier(fk, fk, keras, "float32"), lambda: block(fk, keras, "float32")):
        model, loss = make()
        optimizer = keras.optimizers.SGD(0.1)
        before = [variable.numpy() for variable in model.trainable_variables]

        @tf.function
        def step(tokens, labels, model=model, loss=loss, optimizer=optimizer):
            with tf.GradientTape() as tape:
                value = loss(labels, model(tokens, training=True))
            optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
            return value

        optimizer.build(model.trainable_variables)
        values = [float(step(tf.constant(tokens), tf.constant(labels))) for _ in range(3)]
        assert values[2] < values[0]
        for variable, old in zip(model.trainable_variables, before, strict=True):
            assert (variable.numpy() != old).any(), variable.path
