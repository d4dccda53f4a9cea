"""fusedops.tf.keras.MultiHeadAttention, against Keras's: every kind of mask, and what is left to Keras's own code."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from tests.helpers.accuracy import assert_as_accurate
from tests.helpers.keras_models import gradients, policy, twin, values

BATCH, QUERIES, KEYS, COLUMNS = 3, 6, 9, 16
EPS = float(np.finfo("float32").eps)


@pytest.fixture
def kernels(fk, monkeypatch):
    """The options of every call of the kernel."""
    from fusedops.tf.keras import attention

    calls, softmax = [], attention.fo.softmax
    monkeypatch.setattr(attention.fo, "softmax", lambda x, **options: calls.append(options) or softmax(x, **options))
    return calls


def tensor(random, *shape):
    return random.normal(size=(*shape, COLUMNS)).astype("float32")


def keep(random, *shape):
    """A mask with a row that keeps nothing."""
    mask = random.integers(0, 2, shape).astype(bool)
    mask[0, 1] = False
    return mask


# What the layer is made with; what it is called with, in which a shape stands for a mask of it; whether the kernel
# computes it, and whether without a mask of every pair.
CASES = {
    "plain": ({}, {}, True, True),
    "cross": ({}, {"value": KEYS}, True, True),
    "causal": ({}, {"use_causal_mask": True}, True, True),
    "causal cross": ({}, {"value": KEYS, "use_causal_mask": True}, False, False),
    "mask": ({}, {"attention_mask": (BATCH, QUERIES, QUERIES)}, False, False),
    "scores": ({}, {"attention_mask": (BATCH, QUERIES, QUERIES), "return_attention_scores": True}, True, False),
    "mask of heads": (
        {},
        {"attention_mask": (BATCH, 2, QUERIES, QUERIES), "return_attention_scores": True},
        True,
        False,
    ),
    "causal scores": ({"use_gate": True}, {"use_causal_mask": True, "return_attention_scores": True}, True, True),
    "dropout": ({"dropout": 0.5}, {"attention_mask": (BATCH, QUERIES, QUERIES)}, True, False),
    "causal mask": (
        {"dropout": 0.5},
        {"attention_mask": (BATCH, QUERIES, QUERIES), "use_causal_mask": True},
        True,
        False,
    ),
    "window": ({"sliding_window": 2, "dropout": 0.5}, {"use_causal_mask": True}, True, False),
}


@pytest.mark.parametrize(("options", "call", "fused", "unmasked"), CASES.values(), ids=CASES)
def test_as_keras(keras, fk, kernels, options, call, fused, unmasked, random):
    missing = options.keys() - inspect.signature(keras.layers.MultiHeadAttention).parameters
    if missing:
        pytest.skip(f"Keras {keras.__version__} has no {missing}")
    x = tensor(random, BATCH, QUERIES)
    value = tensor(random, BATCH, call["value"]) if "value" in call else x
    call = {key: keep(random, *given) if isinstance(given, tuple) else given for key, given in call.items()}
    call["value"] = value
    layer = keras.layers.MultiHeadAttention(2, 8, **options)
    expected = values(layer(x, **call))
    fk.convert(layer, verbose=False)
    got = values(layer(x, **call))
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=32 * EPS)
    assert bool(kernels) is fused
    if fused:
        assert (kernels[0]["mask"] is None) is unmasked
        assert kernels[0]["causal"] is (unmasked and "use_causal_mask" in call)


def test_implicit_masks(keras, fk, random):
    inputs = keras.Input((QUERIES,), dtype="int32")
    x = keras.layers.Embedding(5, COLUMNS, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.MultiHeadAttention(2, 8)(x, x, use_causal_mask=True))
    ids = random.integers(0, 5, (BATCH, QUERIES))
    expected = values(model(ids))
    for got, value in zip(values(fk.convert(model, verbose=False)(ids)), expected, strict=True):
        np.testing.assert_allclose(got, value, atol=32 * EPS)


def test_other_axes_are_kept(keras, fk, random, capsys):
    layer = keras.layers.MultiHeadAttention(2, 8, attention_axes=(1, 2), name="plane")
    x = tensor(random, BATCH, 3, 4)
    layer(x, x)
    fk.convert(layer)
    assert "kept MultiHeadAttention 'plane': attention_axes (1, 2) are not" in capsys.readouterr().out


def test_before_keras_3_15(keras, fk, kernels, monkeypatch, random):
    """Its layer has no window, and does not tell `_compute_attention` of causality."""
    theirs = keras.layers.MultiHeadAttention._compute_attention
    given = []

    def of_old(self, query, key, value, attention_mask=None, training=None, return_attention_scores=False):
        given.append(attention_mask)
        return theirs(self, query, key, value, attention_mask, training, return_attention_scores)

    monkeypatch.setattr(keras.layers.MultiHeadAttention, "_compute_attention", of_old)
    layer, x = fk.MultiHeadAttention(2, 8), tensor(random, BATCH, QUERIES)
    layer(x, x, attention_mask=keep(random, BATCH, QUERIES, QUERIES))
    assert len(given) == 1 and not kernels
    vars(layer).pop("_sliding_window", None)
    mask = layer._compute_attention_mask(x, x, use_causal_mask=True)
    layer._compute_attention(*[np.zeros((BATCH, QUERIES, 2, 8), "float32")] * 3, mask)
    assert kernels[0]["mask"] is None and kernels[0]["causal"]


def test_a_subclass_with_attention_of_its_own_gets_a_mask(keras, fk, random):
    masks = []

    class Mine(fk.MultiHeadAttention):
        def _compute_attention(self, query, key, value, attention_mask=None, *args, **kwargs):
            masks.append(values(attention_mask)[0])
            return super()._compute_attention(query, key, value, attention_mask, *args, **kwargs)

    x = tensor(random, BATCH, QUERIES)
    Mine(2, 8)(x, x, use_causal_mask=True)
    np.testing.assert_array_equal(masks, [np.tril(np.ones((1, QUERIES, QUERIES), bool))])


@pytest.mark.parametrize("name", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_accuracy(keras, fk, name, random):
    def build():
        inputs = keras.Input((32, COLUMNS))
        x = keras.layers.MultiHeadAttention(2, 8)(inputs, inputs, use_causal_mask=True)
        return keras.Model(inputs, keras.layers.MultiHeadAttention(2, 8)(x, inputs))

    with policy(keras, name):
        model = build()
    exact, x = twin(keras, build, model), tensor(random, 4, 32)
    results = lambda model: values(model(x)) + gradients(model, x)  # noqa: E731
    plain = results(model)
    fk.convert(model, verbose=False)
    assert_as_accurate(results(model), plain, results(exact), model.compute_dtype)


def test_dropout_is_that_of_keras(keras, fk, random):
    layer = keras.layers.MultiHeadAttention(2, 8, dropout=0.5)
    x = tensor(random, BATCH, QUERIES)
    layer(x, x)
    seed = layer._dropout_layer.seed_generator.state
    state = seed.numpy()
    expected = values(layer(x, x, training=True))
    fk.convert(layer, verbose=False)
    seed.assign(state)
    np.testing.assert_allclose(values(layer(x, x, training=True)), expected, atol=32 * EPS)
