"""Attention layers of fusedops.tf.keras, against Keras's: all kinds of masks, and calls left to Keras's own code."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from tests.helpers.accuracy import assert_as_accurate
from tests.helpers.converting import converted
from tests.helpers.keras_models import gradients, policy, twin, values

BATCH, QUERIES, KEYS, COLUMNS = 3, 6, 9, 16
EPS = float(np.finfo("float32").eps)


@pytest.fixture
def kernels(fk, monkeypatch):
    """The name and the options of every kernel call."""
    import fusedops.tf as fo

    calls = []

    def record(name):
        kernel = getattr(fo, name)

        def call(*inputs, **options):
            calls.append((name, options))
            return kernel(*inputs, **options)

        monkeypatch.setattr(fo, name, call)

    record("attention")
    record("softmax")
    return calls


def make(layers, kind, **options):
    if kind == "multi-head":
        return layers.MultiHeadAttention(2, 8, **options)
    return layers.GroupQueryAttention(8, 4, 2, **options)


@pytest.fixture(params=["multi-head", "grouped"])
def kind(request):
    return request.param


def tensor(random, *shape):
    return random.normal(size=(*shape, COLUMNS)).astype("float32")


def keep(random, *shape):
    """A mask with one row that masks everything."""
    mask = random.integers(0, 2, shape).astype(bool)
    mask[0, 1] = False
    return mask


def padding(length):
    """Padding of keys: on the left, everywhere, on the right."""
    mask = np.ones((BATCH, length), bool)
    mask[0, :3] = mask[1] = mask[2, -3:] = False
    return mask


PAIRS, PADDING = (BATCH, QUERIES, QUERIES), (BATCH, QUERIES)
CAUSAL, SCORES = {"use_causal_mask": True}, {"return_attention_scores": True}
# The layer's arguments; the call's arguments, in which a shape stands for a mask of it; the kernel, the number of
# dimensions of its mask that are not 1, and the positional options that it gets.
CASES = {
    "plain": ({}, {}, "attention", 0, {}),
    "flash": ({"flash_attention": True}, {}, "attention", 0, {}),
    "cross": ({"use_gate": True}, {"value": KEYS}, "attention", 0, {}),
    "causal": ({}, CAUSAL, "attention", 0, {"causal": True}),
    "causal cross": ({}, {"value": KEYS, **CAUSAL}, "attention", 2, {}),
    "causal cross of few keys": ({}, {"value": 4, **CAUSAL}, "attention", 2, {}),
    "keys": ({}, {"value_mask": PADDING}, "attention", 2, {}),
    "keys and values": ({}, {"value_mask": PADDING, "key_mask": "others", **CAUSAL}, "attention", 2, {"causal": True}),
    "queries": ({}, {"value": QUERIES, "query_mask": PADDING, **CAUSAL}, "attention", 0, {"causal": True}),
    "queries and keys": ({}, {"query_mask": PADDING, "value_mask": PADDING}, "attention", 2, {}),
    "window": ({"sliding_window": 2}, {}, "attention", 2, {}),
    "causal window": ({"sliding_window": 2}, {"value_mask": PADDING, **CAUSAL}, "attention", 2, {"window": 2}),
    "wide window": ({"sliding_window": 9}, {"value_mask": PADDING, **CAUSAL}, "attention", 2, {"window": 9}),
    "mask": ({}, {"attention_mask": PAIRS}, "attention", 3, {}),
    "everything": (
        {"sliding_window": 4},
        {"attention_mask": PAIRS, "query_mask": PADDING, "value_mask": PADDING, **CAUSAL},
        "attention",
        3,
        {"causal": True},
    ),
    "mask of heads": ({}, {"attention_mask": (BATCH, 2, QUERIES, QUERIES)}, "attention", 4, {}),
    "zeros": ({"dropout": 0.5}, {"query_mask": PADDING, "value_mask": PADDING}, "attention", 2, {}),
    "scores": ({}, {"attention_mask": PAIRS, **SCORES}, "softmax", 3, {}),
    "scores of padding": ({}, {"value_mask": PADDING, **CAUSAL, **SCORES}, "softmax", 3, {}),
    "causal scores": ({"use_gate": True}, {**CAUSAL, **SCORES}, "softmax", 0, {"causal": True}),
    "scores in a window": ({"sliding_window": 2}, {**CAUSAL, **SCORES}, "softmax", 2, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_as_keras(keras, fk, kernels, kind, case, random):
    options, call, kernel, rank, positions = CASES[case]
    if case == "mask of heads" and kind == "grouped":
        pytest.skip("has another number of heads")
    missing = options.keys() - inspect.signature(keras.layers.MultiHeadAttention).parameters
    if missing:
        pytest.skip(f"Keras {keras.__version__} has no {missing}")
    tf = pytest.importorskip("tensorflow")
    x = tf.constant(tensor(random, BATCH, QUERIES))
    value = tf.constant(tensor(random, BATCH, call["value"])) if "value" in call else x
    masks = {PADDING: lambda: padding(QUERIES), "others": lambda: padding(QUERIES)[:, ::-1]}
    call = {
        name: masks.get(given, lambda given=given: keep(random, *given))()
        if name.endswith("mask") and given is not True
        else given
        for name, given in call.items()
    }
    call["value"] = value
    query_mask = call.pop("query_mask", None)

    def results():
        if query_mask is not None:
            x._keras_mask = tf.constant(query_mask)  # the only mask of queries that Keras's MultiHeadAttention reads
        with tf.GradientTape() as tape:
            tape.watch([x, value])
            outputs = tf.nest.flatten(layer(x, **call))
            loss = sum(tf.reduce_sum(y * tf.cos(tf.reshape(tf.range(float(tf.size(y))), y.shape))) for y in outputs)
        return values([outputs, tape.gradient(loss, [x, value, *layer.trainable_variables])])

    layer = make(keras.layers, kind, **{name: given for name, given in options.items() if name != "flash_attention"})
    expected = results()
    converted(fk, layer)
    layer._flash_attention = options.get("flash_attention", False)
    kernels.clear()
    for ours, theirs in zip(results(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=64 * EPS * max(1, np.abs(theirs).max()))
    [(name, given)] = kernels
    assert name == kernel
    mask = given["mask"]
    assert (0 if mask is None else sum(size > 1 for size in mask.shape)) == rank
    assert given["causal"] is bool(positions)
    assert given.get("window") == positions.get("window")


def test_numbers_of_a_mask_are_truth_values(keras, fk, kind, random):
    """As in Keras, which adds no mask to scores."""
    layer, x = make(keras.layers, kind), tensor(random, BATCH, QUERIES)
    mask = random.choice(np.array([0.0, 0.5, -1.0], "float32"), PAIRS)
    expected = values(layer(x, x, attention_mask=mask))
    converted(fk, layer)
    np.testing.assert_allclose(values(layer(x, x, attention_mask=mask)), expected, atol=64 * EPS)


def test_what_no_kernel_takes_is_kept(keras, fk, random, capsys):
    layers = {
        "attention_axes (1, 2) are not the first after the batch": ((3, 4), {"attention_axes": (1, 2)}),
        "value_dim 577 is above 576": ((4,), {"value_dim": 577}),
    }
    for reason, (shape, options) in layers.items():
        layer = keras.layers.MultiHeadAttention(2, 8, name="kept", **options)
        ours = fk.MultiHeadAttention.from_config(layer.get_config())
        x = tensor(random, BATCH, *shape)
        expected = layer(x, x, use_causal_mask=len(shape) == 1)
        fk.convert(keras.Sequential([layer, keras.layers.Softmax()]))
        assert f"kept MultiHeadAttention 'kept': {reason}" in capsys.readouterr().out
        ours(x, x)
        ours.set_weights(layer.get_weights())
        got = ours(x, x, use_causal_mask=len(shape) == 1)
        # its projections are fusedops's
        np.testing.assert_allclose(got, expected, atol=64 * EPS * np.abs(expected).max())
        assert ours.why_not() == reason
    assert fk.GroupQueryAttention(577, 2, 1).why_not() == "head_dim 577 is above 576"


def test_flash_attention(fk, kind, random):
    """Keras refuses it over TensorFlow, and refuses scores with it everywhere."""
    layer = make(fk, kind, flash_attention=True)
    x = tensor(random, BATCH, QUERIES)
    assert layer(x, x).shape == x.shape
    with pytest.raises(ValueError, match="Returning attention scores is not supported"):
        layer(x, x, return_attention_scores=True)


def test_before_keras_3_15(keras, fk, kernels, monkeypatch, random):
    """Its layer has no window, and does not pass causality to `_compute_attention`."""
    import tensorflow as tf

    theirs = keras.layers.MultiHeadAttention._compute_attention
    given = []

    def of_old(self, query, key, value, attention_mask=None, training=None, return_attention_scores=False):
        given.append(attention_mask)
        return theirs(self, query, key, value, attention_mask, training, return_attention_scores)

    monkeypatch.setattr(keras.layers.MultiHeadAttention, "_compute_attention", of_old)
    x = tensor(random, BATCH, QUERIES)
    fk.MultiHeadAttention(2, 8, value_dim=577)(x, x, attention_mask=keep(random, BATCH, QUERIES, QUERIES))
    assert len(given) == 1 and not kernels
    layer = fk.MultiHeadAttention(2, 8)
    layer(x, x)
    del layer._sliding_window
    kernels.clear()
    mask = layer._compute_attention_mask(x, x, use_causal_mask=True)
    layer._compute_attention(*[tf.zeros((BATCH, QUERIES, 2, 8))] * 3, mask)
    [(_, options)] = kernels
    assert options["mask"] is None and options["causal"]


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
        x = keras.layers.GroupQueryAttention(8, 4, 2)(x, x)
        return keras.Model(inputs, keras.layers.MultiHeadAttention(2, 8)(x, inputs))

    with policy(keras, name):
        model = build()
    exact, x = twin(keras, build, model), tensor(random, 4, 32)
    results = lambda model: values(model(x)) + gradients(model, x)  # noqa: E731
    plain = results(model)
    converted(fk, model)
    assert_as_accurate(results(model), plain, results(exact), model.compute_dtype)


def text_model(keras):
    """With implicit masks and unknown lengths; the batch's first text is all padding."""
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(5, COLUMNS, mask_zero=True)(inputs)
    x = keras.layers.MultiHeadAttention(2, 8)(x, x, use_causal_mask=True)
    return keras.Model(inputs, keras.layers.GroupQueryAttention(8, 4, 2)(x, x, use_causal_mask=True))


def texts(random):
    ids = random.integers(1, 5, (BATCH, QUERIES))
    ids[0] = ids[1, :2] = ids[2, -3:] = 0
    return ids


@pytest.mark.parametrize("jit_compile", [False, True])
def test_graphs(keras, fk, jit_compile, random):
    import tensorflow as tf

    from fusedops.tf import xla

    if jit_compile and xla.fault:
        pytest.skip(xla.fault)
    model, ids = text_model(keras), tf.constant(texts(random))
    plain = values(model(ids)) + gradients(model, ids)
    converted(fk, model)
    eager = values(model(ids))
    shape = eager[0].shape

    @tf.function(jit_compile=jit_compile)
    def step(ids):
        with tf.GradientTape() as tape:
            y = tf.ensure_shape(model(ids), shape)
        upstream = tf.constant(np.cos(np.square(np.arange(y.shape.num_elements()))).reshape(shape), tf.float32)
        found = tape.gradient(y, [weight.value for weight in model.trainable_weights], upstream)
        return [y, *(tf.convert_to_tensor(each) for each in found[1:])]

    got, weights = values(step(ids)), [values(x)[0] for x in plain]
    del weights[1]  # the embedding's gradient, which is sparse
    for ours, theirs in zip(got, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=64 * EPS * max(1, np.abs(theirs).max()))


def test_saved_models(keras, fk, random, tmp_path):
    """With their classes, and without them after `revert`."""
    model, ids = text_model(keras), texts(random)
    expected = values(converted(fk, model)(ids))[0]
    for number in range(2):
        model.save(tmp_path / f"{number}.keras")
        loaded = keras.models.load_model(tmp_path / f"{number}.keras")
        kinds = {type(layer) for layer in loaded.layers}
        assert (fk.GroupQueryAttention in kinds) is (number == 0)
        np.testing.assert_allclose(values(loaded(ids))[0], expected, atol=32 * EPS)
        fk.revert(model)


def test_dropout_follows_from_the_generator(keras, fk, kernels, kind, random):
    """The layer's own seed generator gives another mask at each call, and the same from the same state. On average, the
    results are those without dropout."""
    layer = make(keras.layers, kind, dropout=0.5)
    x = tensor(random, BATCH, QUERIES)
    converted(fk, layer)
    whole = values(layer(x, x, training=False))[0]
    seed = layer._dropout_layer.seed_generator.state
    state = seed.numpy()
    kernels.clear()
    first, second = (values(layer(x, x, training=True))[0] for _ in range(2))
    assert [name for name, _ in kernels] == ["attention"] * 2
    assert np.any(first != second)
    seed.assign(state)
    np.testing.assert_array_equal(values(layer(x, x, training=True))[0], first)
    many = np.stack([values(layer(x, x, training=True))[0] for _ in range(400)])
    deviation = many.std(0) / np.sqrt(len(many))
    assert np.all(np.abs(many.mean(0) - whole) < 6 * deviation + 1e-5)


def test_dropout_of_scores_that_are_returned_is_that_of_its_layer(keras, fk, kernels, kind, random):
    layer = make(keras.layers, kind, dropout=0.5)
    x = tensor(random, BATCH, QUERIES)
    layer(x, x)
    converted(fk, layer._dropout_layer)
    seed = layer._dropout_layer.seed_generator.state
    state = seed.numpy()
    expected = values(layer(x, x, training=True, return_attention_scores=True)[0])
    converted(fk, layer)
    seed.assign(state)
    kernels.clear()
    got = values(layer(x, x, training=True, return_attention_scores=True)[0])
    np.testing.assert_allclose(got, expected, atol=32 * EPS)
    assert [name for name, _ in kernels] == ["softmax"]
