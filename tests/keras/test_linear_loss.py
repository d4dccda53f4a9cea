"""The Keras layer LinearCrossEntropyLoss: the loss of Dense's logits, or the logits if no labels are given."""

from __future__ import annotations

import numpy as np
import pytest

UNITS = 7
WEIGHTS = [0.5 * i for i in range(UNITS)]
OPTIONS = (
    *({}, {"softcap": 2.0}, {"reduction": "sum", "ignore_class": 2}, {"reduction": "none", "label_smoothing": 0.1}),
    {"class_weight": WEIGHTS, "z_loss": 0.1, "label_smoothing": 0.1},
)


def test_class_weights_may_be_a_dict(keras, fk):
    layer = fk.LinearCrossEntropyLoss(3, class_weight={2: 10.0, 0: 0.0})
    assert layer.class_weight == [0.0, 1.0, 10.0]
    assert type(layer).from_config(layer.get_config()).class_weight == layer.class_weight
    with pytest.raises(ValueError, match=r"class_weight must have classes in \[0, 3\); got 3"):
        fk.LinearCrossEntropyLoss(3, class_weight={3: 1.0})


@pytest.fixture
def batch(tf_backend, random):
    inputs = tf_backend.tensor(random.normal(size=(4, 6, 8)), "float32")
    return inputs, tf_backend.tf.constant(random.integers(0, UNITS, (4, 6)))


def made(keras, fk, **options):
    """A built layer, and a function that computes the loss from its logits."""
    layer = fk.LinearCrossEntropyLoss(UNITS, bias_initializer="normal", **options)
    layer.build((None, 6, 8))
    ignored = options.get("ignore_class")

    def plain(inputs, labels):
        kernel, bias = (keras.ops.convert_to_tensor(weight) for weight in layer.weights)
        logits = keras.ops.matmul(inputs, kernel) + bias
        if layer.softcap:
            logits = layer.softcap * keras.ops.tanh(logits / layer.softcap)
        smooth = layer.label_smoothing
        weights = np.float32(layer.class_weight or [1.0] * UNITS)
        shares = (keras.ops.one_hot(labels, UNITS) * (1 - smooth) + smooth / UNITS) * weights
        losses = -keras.ops.sum(shares * keras.ops.log_softmax(logits), -1)
        losses += layer.z_loss * keras.ops.logsumexp(logits, -1) ** 2
        if layer.class_weight and layer.reduction == "mean":
            return keras.ops.sum(losses) / keras.ops.sum(keras.ops.take(weights, labels))
        if ignored is not None:
            losses = keras.ops.where(labels == ignored, 0.0, losses)
        return {"mean": keras.ops.mean, "sum": keras.ops.sum, "none": lambda x: x}[layer.reduction](losses)

    return layer, plain


def value_and_gradients(tf, function, layer, inputs, labels):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        total = tf.reduce_sum(function(inputs, labels) ** 2)
    return [total, *tape.gradient(total, [inputs, *(weight.value for weight in layer.trainable_weights)])]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_loss_and_gradients(tf_backend, keras, fk, batch, options):
    tf = tf_backend.tf
    layer, plain = made(keras, fk, **options)
    expected = value_and_gradients(tf, plain, layer, *batch)
    for function in (layer, tf.function(layer)):
        for got, right in zip(value_and_gradients(tf, function, layer, *batch), expected, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5 * np.abs(right).max())
    assert layer(*batch).shape == ((4, 6) if layer.reduction == "none" else ())


def test_logits_without_labels(keras, fk, batch):
    layer, _ = made(keras, fk, softcap=2.0)
    dense = keras.layers.Dense(UNITS)
    dense.build((None, 6, 8))
    dense.set_weights(layer.get_weights())
    expected = 2 * np.tanh(dense(batch[0]).numpy() / 2)
    np.testing.assert_allclose(layer(batch[0]), expected, rtol=1e-6, atol=1e-6)


def test_a_mask_and_a_mixed_policy(tf_backend, keras, fk, batch):
    tf, (inputs, labels) = tf_backend.tf, batch
    layer, _ = made(keras, fk, dtype="mixed_bfloat16")
    mask = tf.constant(np.arange(24).reshape(4, 6) % 3 > 0)
    unmasked = layer(tf.boolean_mask(inputs, mask), tf.boolean_mask(labels, mask))
    inputs._keras_mask = mask
    loss = layer(inputs, labels)
    assert loss.dtype == tf.float32
    np.testing.assert_allclose(loss, unmasked, rtol=1e-6)


def test_trained_and_saved(keras, fk, batch, tmp_path):
    """The layer is the output of a functional model, and the model's loss is that output."""
    inputs, labels = keras.Input((6, 8)), keras.Input((6,), dtype="int64")
    model = keras.Model([inputs, labels], fk.LinearCrossEntropyLoss(UNITS, ignore_class=1)(inputs, labels))
    model.compile("adam", lambda _, loss: loss)
    data = tuple(np.asarray(x) for x in batch)
    history = model.fit(list(data), np.zeros(4), epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0]
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_array_equal(again(list(batch)), model(list(batch)))
    assert again.layers[-1].get_config() == model.layers[-1].get_config()


def test_a_quantized_layer(keras, fk, batch):
    layer, _ = made(keras, fk)
    expected = layer(*batch)
    layer.quantize("int8", type_check=False)
    assert layer.why_not() == "it is quantized to int8"
    np.testing.assert_allclose(layer(*batch), expected, rtol=0.05)


def test_errors(fk):
    name = "fusedops.tf.keras.LinearCrossEntropyLoss"
    with pytest.raises(ValueError, match=f"{name}: activation must be None, .*; got 'relu'$"):
        fk.LinearCrossEntropyLoss(3, activation="relu")
    with pytest.raises(ValueError, match=f"{name}: reduction must be one of mean, sum, none; got 'max'"):
        fk.LinearCrossEntropyLoss(3, reduction="max")
