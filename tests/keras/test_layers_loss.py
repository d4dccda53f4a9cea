"""The Keras loss SparseCategoricalCrossentropy against Keras's own."""

from __future__ import annotations

import itertools
import json

import ml_dtypes
import numpy as np
import pytest

from tests.helpers.keras_layers import load_keras, products_of_float32  # noqa: F401
from tests.helpers.numerics import assert_accurate, assert_same_bits
from tests.helpers.specification import any_order

ROWS, CLASSES = (4, 6), 33
REDUCTIONS = ("sum_over_batch_size", "sum", "mean", "mean_with_sample_weight", "none", None)
# Roundings to the loss's dtype: the loss, its weight, the mask's weight, their product, the mean. Gradients have as
# many.
STORED = 5
DTYPES = pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])


def losses(**options):
    """The losses of fusedops and of Keras."""
    import fusedops.tf.keras

    return tuple(
        package.SparseCategoricalCrossentropy(**{"from_logits": True, **options})
        for package in (fusedops.tf.keras, load_keras().losses)
    )


def data(backend, dtype, random, ignored=None):
    logits = backend.tensor(random.normal(size=(*ROWS, CLASSES)), dtype)
    labels = random.integers(0, CLASSES, size=ROWS)
    if ignored is not None:
        labels[random.random(size=ROWS) < 0.3] = ignored
    return backend.tf.constant(labels), logits


def value_and_gradient(backend, loss, labels, logits, *arguments, mask=None):
    tf = backend.tf
    with tf.GradientTape() as tape:
        tape.watch(logits)
        y_pred = tf.identity(logits)
        if mask is not None:
            y_pred._keras_mask = mask
        value = loss(labels, y_pred, *arguments)
    return value.numpy(), tape.gradient(value, logits).numpy()


def assert_like_keras(backend, results, exact, dtype):
    """Keras's values in float64 are the reference; its results have the dtypes and shapes of fusedops's. `dtype` is the
    loss's."""
    (value, gradient), (their_value, their_gradient) = results
    assert (value.dtype, value.shape) == (their_value.dtype, their_value.shape)
    assert (gradient.dtype, gradient.shape) == (their_gradient.dtype, their_gradient.shape)
    terms = any_order(CLASSES + ROWS[0] * ROWS[1])
    for got, right in zip((value, gradient), exact, strict=True):
        of_logits = gradient.dtype.name if got is gradient else "float64"  # the logits are inputs, and exact
        coarser = max(dtype, of_logits, key=lambda dtype: ml_dtypes.finfo(dtype).eps)
        assert_accurate(got, right, np.full(right.shape, np.abs(right).max()), 4 * terms, storage=(STORED, coarser))


@DTYPES
@pytest.mark.parametrize("weights", ["none", "scalar", "row", "rows", "column"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_options(tf_backend, reduction, weights, dtype, random):
    """With masks and ignored classes, in all combinations."""
    tf = tf_backend.tf
    shape = {"scalar": (), "row": ROWS[:1], "rows": ROWS, "column": (*ROWS, 1)}.get(weights)
    if weights == "row" and reduction != "none":
        shape = (ROWS[0], 1)  # broadcasts
    elif weights == "row":
        shape = (ROWS[1],)
    sample_weight = () if shape is None else (random.random(size=shape),)
    for ignored, masked in itertools.product((None, -1, 7), (False, True)):
        labels, logits = data(tf_backend, dtype, random, ignored)
        mask = tf.constant(random.random(size=ROWS) < 0.7) if masked else None
        mine, theirs = losses(reduction=reduction, ignore_class=ignored)
        assert mine.why_not(labels, logits) is None
        results = [
            value_and_gradient(tf_backend, loss, labels, logits, *sample_weight, mask=mask) for loss in (mine, theirs)
        ]
        exact_loss = losses(reduction=reduction, ignore_class=ignored, dtype="float64")[1]
        exact_logits = tf.cast(logits, tf.float64)
        exact = value_and_gradient(tf_backend, exact_loss, labels, exact_logits, *sample_weight, mask=mask)
        assert_like_keras(tf_backend, results, exact, "float32")


@DTYPES
@pytest.mark.parametrize("of_loss", ["float64", "float32", "bfloat16", "mixed_bfloat16"])
def test_dtype_of_the_loss(tf_backend, dtype, of_loss, random):
    labels, logits = data(tf_backend, dtype, random)
    results = [value_and_gradient(tf_backend, loss, labels, logits) for loss in losses(dtype=of_loss)]
    exact = value_and_gradient(
        tf_backend, losses(dtype="float64")[1], labels, tf_backend.tf.cast(logits, tf_backend.tf.float64)
    )
    assert_like_keras(tf_backend, results, exact, of_loss.removeprefix("mixed_"))


@pytest.mark.parametrize("kind", ["int32", "int64", "uint8", "int16", "float32", "float64", "numpy", "column"])
def test_labels(tf_backend, kind, random):
    """All kinds and shapes of labels that Keras accepts."""
    tf = tf_backend.tf
    labels, logits = data(tf_backend, "float32", random)
    changed = {"numpy": lambda: labels.numpy(), "column": lambda: labels[..., None]}
    given = changed.get(kind, lambda: tf.cast(labels, kind))()
    mine, theirs = losses()
    got, expected = (value_and_gradient(tf_backend, loss, given, logits) for loss in (mine, theirs))
    for result, right in zip(got, expected, strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-5, atol=1e-7)


def test_labels_beyond_float32_are_exact(tf_cpu):
    """Keras rounds labels to float32, and confuses 2**24 + 1 with its neighbour."""
    tf = tf_cpu.tf
    labels = tf.constant([2**24 + 1], tf.int64)
    logits = tf.zeros([1, 2**24 + 2]) + tf.one_hot([2**24 + 1], 2**24 + 2)
    mine, theirs = losses()
    for given in ((labels, logits), (labels.numpy(), logits.numpy())):
        assert float(mine(*given)) < float(theirs(*given)) - 0.5


def test_16_bit_logits_are_not_copied(tf_cpu, random):
    """The graph has no cast of the logits' size."""
    tf = tf_cpu.tf
    labels, logits = data(tf_cpu, "bfloat16", random)

    def casts(loss):
        graph = tf.function(loss).get_concrete_function(labels, logits).graph
        return [op for op in graph.get_operations() if op.type == "Cast" and op.inputs[0].shape == logits.shape]

    mine, theirs = losses()
    assert mine.why_not(labels, logits) or not casts(mine)
    assert casts(theirs)


@pytest.mark.parametrize(
    "options",
    [{"from_logits": False}, {"from_logits": False, "ignore_class": 3}],
    ids=str,
)
def test_probabilities_are_left_to_keras(tf_backend, options, random):
    tf = tf_backend.tf
    labels, logits = data(tf_backend, "float32", random)
    probabilities = tf.nn.softmax(logits)
    mine, theirs = losses(**options)
    assert mine.why_not() == "from_logits is not set"
    for got, expected in zip(
        *(value_and_gradient(tf_backend, loss, labels, probabilities) for loss in (mine, theirs)), strict=True
    ):
        assert_same_bits(got, expected)


@pytest.mark.filterwarnings("ignore:.*received `from_logits=True`, but")  # and came out of a softmax
def test_unusual_tensors_are_left_to_keras(tf_backend, random):
    tf = tf_backend.tf
    labels, logits = data(tf_backend, "float32", random)
    mine, theirs = losses()
    softmax = load_keras().activations.softmax(logits)
    cases = {
        "y_pred came out of a softmax": (labels, softmax),
        "these are no tensors of labels and logits": (labels, tf.cast(8 * logits, tf.int32)),
        "there is one class": (tf.zeros([4, 1], tf.int32), tf.zeros([4, 1])),
    }
    for reason, tensors in cases.items():
        assert mine.why_not(*tensors) == reason
        assert_same_bits(mine(*tensors).numpy(), theirs(*tensors).numpy())
    axis = losses(axis=1)[0]
    assert axis.why_not(labels, logits) == "axis is not the last"
    assert losses(axis=2)[0].why_not(labels, logits) is None
    for loss in (mine, theirs):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
            loss(labels[0], logits)


def test_wrong_labels(tf_backend, random):
    """An error on a CPU; NaN on a GPU, where the other rows are unaffected."""
    tf = tf_backend.tf
    labels, logits = data(tf_backend, "float32", random)
    for wrong in (-1, -100, CLASSES, -(2**31)):
        bad = labels.numpy().copy()
        bad[1, 2] = wrong
        mine = losses(reduction="none")[0]
        if tf_backend.device == "cpu":
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"got {wrong}"):
                mine(tf.constant(bad), logits)
        else:
            got, gradient = value_and_gradient(tf_backend, mine, tf.constant(bad), logits)
            nan = np.arange(24).reshape(ROWS) == 8
            np.testing.assert_array_equal(np.isnan(got), nan)
            np.testing.assert_array_equal(np.isnan(gradient).all(-1), nan)


def test_call_has_a_loss_for_each_row(tf_backend, random):
    labels, logits = data(tf_backend, "float32", random, ignored=3)
    mine, theirs = losses(ignore_class=3)
    got = mine.call(labels, logits)
    expected = theirs.call(tf_backend.tf.cast(labels, "float32"), logits)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got._keras_mask, labels != 3)


def test_config(tf_cpu):
    keras = load_keras()
    for options in ({}, {"from_logits": False}, {"ignore_class": 3, "reduction": "sum", "name": "loss"}):
        mine, theirs = losses(**options)
        assert mine.get_config() == theirs.get_config()
        assert type(mine).from_config(mine.get_config()).get_config() == mine.get_config()
        saved = keras.losses.serialize(mine)
        assert saved["registered_name"] == "fusedops>SparseCategoricalCrossentropy"
        assert type(keras.losses.deserialize(saved)) is type(mine)


WEIGHTED = {"class_weight": [0.25 + i % 3 for i in range(CLASSES)], "z_loss": 0.1}


@pytest.mark.parametrize("way", ["eager", "graph", "without XLA"])
@pytest.mark.parametrize("ignored", [None, 7])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "none"])
def test_class_weights_and_z_loss(tf_backend, reduction, ignored, way, random, monkeypatch):
    """The first are weights of samples. A mean of either divides by the number of rows."""
    import fusedops.tf.keras as fk
    from fusedops.tf import xla

    tf, options = tf_backend.tf, {"reduction": reduction, "ignore_class": ignored}
    labels, logits = data(tf_backend, "float32", random, ignored)
    theirs = losses(**options, dtype="float64")[1]
    mine = fk.SparseCategoricalCrossentropy(from_logits=True, **options, **WEIGHTED)
    weights = tf.gather(tf.constant(WEIGHTED["class_weight"], tf.float64), labels)
    counts = tf.ones_like(weights) if ignored is None else tf.cast(labels != ignored, tf.float64)

    def expected(labels, logits):
        wide = tf.cast(logits, tf.float64)
        extra = WEIGHTED["z_loss"] * tf.reduce_logsumexp(wide, -1) ** 2 * counts
        if reduction != "none":
            extra = tf.reduce_sum(extra) / (1 if reduction == "sum" else tf.reduce_sum(counts))
        return theirs(labels, wide, weights) + extra

    if way == "without XLA":
        monkeypatch.setattr(xla, "fault", "the library is stale")
    loss = mine if way == "eager" else tf.function(mine)
    for given in (labels, labels[..., None]):
        got, exact = (value_and_gradient(tf_backend, each, given, logits) for each in (loss, expected))
        for value, right in zip(got, exact, strict=True):
            magnitude = np.full(right.shape, np.abs(right).max())
            terms = any_order(CLASSES + ROWS[0] * ROWS[1])
            assert_accurate(value, right, magnitude, 8 * terms, storage=(STORED, "float32"))
    if way != "eager":
        kinds = {op.type for op in loss.get_concrete_function(labels, logits).graph.get_operations()}
        assert ("FusedopsCrossEntropy" in kinds) == (way == "graph")


def test_config_of_class_weights_and_z_loss(tf_cpu):
    """Keras's config has more entries only if they are needed, and `revert` leaves such a loss as it is."""
    import fusedops.tf.keras as fk

    keras = load_keras()
    for options in (WEIGHTED, {"z_loss": 0.5}, {"class_weight": np.float32([1.0, 0.5])}):
        loss = fk.SparseCategoricalCrossentropy(from_logits=True, **options)
        again = keras.losses.deserialize(json.loads(json.dumps(keras.losses.serialize(loss))))
        assert again.get_config() == loss.get_config()
        assert (again.z_loss, again.class_weight) == (loss.z_loss, loss.class_weight)
        model = keras.Sequential([keras.Input((3,)), fk.Dense(2)])
        model.compile("sgd", loss)
        fk.revert(model)
        assert type(model.layers[0]) is keras.layers.Dense and type(model.loss) is type(loss)
    assert not {"class_weight", "z_loss"} & fk.SparseCategoricalCrossentropy(from_logits=True).get_config().keys()


@pytest.mark.parametrize("way", ["eager", "graph", "without XLA"])
def test_errors_of_class_weights_and_z_loss(tf_cpu, way, random, monkeypatch):
    import fusedops.tf.keras as fk
    from fusedops.tf import xla

    tf = tf_cpu.tf
    labels, logits = data(tf_cpu, "float32", random)
    name = "fusedops.tf.keras.SparseCategoricalCrossentropy"
    with pytest.raises(ValueError, match=f"{name}: from_logits must be True beside class_weight or z_loss; got False"):
        fk.SparseCategoricalCrossentropy(z_loss=0.1)
    with pytest.raises(ValueError, match=f"{name}: class_weight must have a number for each class; got a dict"):
        fk.SparseCategoricalCrossentropy(from_logits=True, class_weight={0: 1.0})
    with pytest.raises(ValueError, match=f"{name}: class_weight and z_loss must be left out.*; axis is not the last"):
        fk.SparseCategoricalCrossentropy(from_logits=True, z_loss=0.1, axis=1)(labels, logits)
    weights = [1.0] * (CLASSES - 1)
    for options, sentence in (
        ({"z_loss": -1.0}, "z_loss must be a finite number, at least 0; got -1"),
        ({"z_loss": float("nan")}, "z_loss must be a finite number, at least 0; got nan"),
        ({"class_weight": [*weights, -1.0]}, f"class_weight must not be negative; got -1 for class {CLASSES - 1}"),
    ):
        with pytest.raises(ValueError, match=f"{name}: {sentence}"):
            fk.SparseCategoricalCrossentropy(from_logits=True, **options)
    if way == "without XLA":
        monkeypatch.setattr(xla, "fault", "the library is stale")

    def call(labels, **options):
        loss = fk.SparseCategoricalCrossentropy(from_logits=True, **options)
        return (loss if way == "eager" else tf.function(loss))(labels, logits)

    for size in (CLASSES - 1, CLASSES + 1):
        sentence = rf"class_weight must have shape \[{CLASSES}\], one number for each class; got \[{size}\]"
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=sentence):
            call(labels, class_weight=[1.0] * size)
    for label in (-1, CLASSES):
        with pytest.raises(tf.errors.InvalidArgumentError, match="label"):
            call(tf.fill(labels.shape, label), z_loss=0.1)


def test_no_rows(tf_backend):
    tf = tf_backend.tf
    for loss in losses():
        value = loss(tf.zeros([0], tf.int32), tf.zeros([0, 5]))
        assert value.shape == (0,)


def test_without_xla_a_graph_is_left_to_keras(tf_cpu, monkeypatch, random):
    """Keras compiles for XLA without consulting the loss, and XLA then must know all operators."""
    from fusedops.tf import xla

    tf = tf_cpu.tf
    labels, logits = data(tf_cpu, "float32", random)
    mine = losses()[0]
    for fault in (None, "the library is not there"):
        monkeypatch.setattr(xla, "fault", fault)
        graph = tf.function(lambda labels, logits: mine(labels, logits)).get_concrete_function(labels, logits).graph
        kinds = {op.type for op in graph.get_operations()}
        assert ("FusedopsCrossEntropy" in kinds) == (fault is None)
        assert mine.why_not(labels, logits) is None
