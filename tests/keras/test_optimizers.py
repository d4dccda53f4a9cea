"""fusedops.tf.keras.optimizers: Keras's optimizers, with all variables updated in one pass."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.helpers.converting import converted
from tests.helpers.numerics import assert_accurate, assert_same_bits

SHAPES = ((33,), (), (5, 7), (2050,))
# Representable in float32: Keras rounds the betas to it in the bias correction, also in float64.
BETAS = {"beta_1": 0.875, "beta_2": 1 - 2.0**-10}
CASES = {
    "AdamW": [
        BETAS,
        {**BETAS, "weight_decay": 0.1, "epsilon": 1e-3},
        {"beta_1": 0.875, "beta_2": 0.5, "amsgrad": True},  # the largest second moment is often an old one
    ],
    "Adam": [
        BETAS,
        {**BETAS, "weight_decay": 0.1, "global_clipnorm": 1.0, "use_ema": True},
        {**BETAS, "amsgrad": True},
    ],
    "SGD": [{}, {"momentum": 0.9, "weight_decay": 0.05}, {"momentum": 0.9, "nesterov": True, "clipvalue": 0.5}],
}
all_cases = pytest.mark.parametrize(
    ("kind", "options"), [(kind, options) for kind, some in CASES.items() for options in some], ids=str
)


@pytest.fixture
def optimizers(fk):
    return fk.optimizers


def variables(keras, dtype="float32"):
    random = np.random.default_rng(0)
    return [keras.Variable(random.normal(size=shape), dtype=dtype) for shape in SHAPES]


def gradients(step, dtype="float32"):
    random = np.random.default_rng(step + 1)
    return [random.normal(size=shape).astype(dtype) for shape in SHAPES]


def train(optimizer, params, steps, way="eager", dtype="float32"):
    import tensorflow as tf

    apply = optimizer.apply
    if way != "eager":
        apply = tf.function(lambda grads: optimizer.apply(grads, params), jit_compile=way == "xla")
    for step in steps:
        grads = [tf.constant(g) for g in gradients(step, dtype)]
        apply(grads) if way != "eager" else apply(grads, params)
    return [p.numpy() for p in params]


def compare(keras, optimizers, kind, options, steps, way):
    """At most twice the error of Keras's own against float64, plus two roundings, over all elements together: a single
    one may be exact by chance."""
    found = []
    for module, dtype in ((optimizers, "float32"), (keras.optimizers, "float32"), (keras.optimizers, "float64")):
        params = variables(keras, dtype)
        optimizer = getattr(module, kind)(0.05, **options)
        optimizer.build(params)
        found.append(np.concatenate([x.ravel() for x in train(optimizer, params, range(steps), way, dtype)]))
    ours, theirs, exact = found
    limit = 2 * np.abs(theirs - exact).max() + 2.0**-22 * np.abs(exact).max()
    assert np.abs(ours - exact).max() <= limit


@all_cases
def test_steps_are_as_accurate_as_those_of_keras(keras, optimizers, kind, options):
    compare(keras, optimizers, kind, options, 40, "eager")


@pytest.mark.slow
@all_cases
def test_many_steps(keras, optimizers, kind, options):
    """A thousand steps run in generic/test_optimizers.py, where PyTorch gives the same bits."""
    compare(keras, optimizers, kind, options, 200, "graph")


@pytest.mark.parametrize("kind", CASES)
def test_eager_graph_and_xla_have_the_same_bits(keras, optimizers, kind):
    found = []
    for way in ("eager", "graph", "xla"):
        params = variables(keras)
        options = {"momentum": 0.9} if kind == "SGD" else {"amsgrad": kind == "Adam"}
        optimizer = getattr(optimizers, kind)(0.05, global_clipnorm=1.0, **options)
        optimizer.build(params)
        found.append(train(optimizer, params, range(4), way))
        assert optimizer.iterations == 4
    for other in found[1:]:
        for x, y in zip(found[0], other, strict=True):
            assert_same_bits(x, y)


@all_cases
def test_states_are_exchanged(keras, optimizers, kind, options):
    """Configs differ in the class only, and either optimizer continues from the other's variables."""
    params = variables(keras)
    expected = train(getattr(optimizers, kind)(0.05, **options), params, range(8))
    for first, second in ((optimizers, keras.optimizers), (keras.optimizers, optimizers)):
        params = variables(keras)
        before = getattr(first, kind)(0.05, **options)
        train(before, params, range(4))
        after = getattr(second, kind).from_config(before.get_config())
        after.build(params)
        store: dict = {}
        before.save_own_variables(store)
        after.load_own_variables(store)
        for x, y in zip(train(after, params, range(4, 8)), expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(after))
        assert type(again) is type(after)
        assert again.get_config() == after.get_config()


def test_excluded_variables_do_not_decay(keras, optimizers):
    found = []
    for module in (optimizers, keras.optimizers):
        params = variables(keras)
        optimizer = module.AdamW(0.05, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_list=params[:2])
        found.append(train(optimizer, params, range(3)))
    for x, y in zip(*found, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def model_of(keras, optimizer, **options):
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([layers.Embedding(50, 8), layers.Flatten(), layers.Dense(16, "tanh"), layers.Dense(4)])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model


def fit(model, epochs=2):
    random = np.random.default_rng(0)
    x, y = random.integers(0, 50, (32, 5)), random.integers(0, 4, 32)
    model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize(
    ("around", "jit"), [("schedule", False), ("accumulation", False), ("scaled", True), ("average", True)]
)
def test_training(keras, optimizers, jit, around):
    """Sparse gradients of an embedding, and everything that Keras does around the update of variables; in graphs, or
    XLA."""
    found = []
    for module in (optimizers, keras.optimizers):
        rate = keras.optimizers.schedules.ExponentialDecay(1e-3, 3, 0.9) if around == "schedule" else 1e-3
        options = {
            "accumulation": {"gradient_accumulation_steps": 2, "clipnorm": 1.0},
            "average": {"use_ema": True, "ema_overwrite_frequency": 3},
        }.get(around, {})
        optimizer = module.AdamW(rate, **options)
        if around == "scaled":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**10, dynamic_growth_steps=3)
        found.append(fit(model_of(keras, optimizer, jit_compile=jit)))
    for x, y in zip(*found, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_a_strategy(keras, optimizers, tf_backend):
    """One call per variable and replica, with Keras's own decay."""
    import tensorflow as tf

    expected = fit(model_of(keras, optimizers.AdamW(1e-3)), 1)
    with tf.distribute.MirroredStrategy(["CPU:0" if tf_backend.device == "cpu" else "GPU:0"]).scope():
        model = model_of(keras, optimizers.AdamW(1e-3))
    for x, y in zip(fit(model, 1), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_convert(keras, fk):
    """The class of a compiled model's optimizer changes, and so does that of one inside a LossScaleOptimizer."""
    expected = fit(model_of(keras, keras.optimizers.Adam(1e-3)), 4)
    model = model_of(keras, keras.optimizers.Adam(1e-3))
    fit(model)
    optimizer, state = model.optimizer, [v.numpy() for v in model.optimizer.variables]
    converted(fk, model)
    assert model.optimizer is optimizer
    assert type(optimizer) is fk.optimizers.Adam
    for x, y in zip(optimizer.variables, state, strict=True):
        assert_same_bits(x.numpy(), y)
    for x, y in zip(fit(model), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    fk.revert(model)
    assert type(optimizer) is keras.optimizers.Adam

    scaled = model_of(keras, keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)))
    converted(fk, scaled)
    assert type(scaled.optimizer.inner_optimizer) is fk.optimizers.SGD
    other = converted(fk, model_of(keras, keras.optimizers.RMSprop(0.1)))
    assert type(other.optimizer) is keras.optimizers.RMSprop


REFUSED = {
    "shape": (np.ones(3, "float32"), "have shape [2050]; got [3]"),
    "complex": (np.ones(2050, "complex64"), "have a real dtype, such as the variable's, float32; got complex64"),
    "rows": (([0.0] * 3, [1, 2, 3], [2051]), "have shape [2050]; got [2051]"),
    "columns": ((np.ones((3, 2), "float32"), [1, 2, 3], None), "have shape [2050]; got [None, 2]"),
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("fault", REFUSED)
@pytest.mark.parametrize("way", ["eager", "graph", "accumulated"])
def test_refused_gradients(keras, optimizers, kind, fault, way):
    """One error before any write: no variable with a sparse gradient changes, none that decays, and none that Keras
    overwrites or accumulates."""
    import tensorflow as tf

    params = [*variables(keras), keras.Variable(1.0, overwrite_with_gradient=True)]
    accumulated = 2 if way == "accumulated" else None
    optimizer = getattr(optimizers, kind)(0.05, weight_decay=0.1, gradient_accumulation_steps=accumulated)
    optimizer.exclude_from_weight_decay(var_list=[params[3]])
    optimizer.build(params)
    before = [p.numpy() for p in [*params, *optimizer.variables]]
    bad, sentence = REFUSED[fault]
    x = tf.IndexedSlices(*(None if x is None else tf.constant(x) for x in bad)) if isinstance(bad, tuple) else bad
    sparse = tf.IndexedSlices(tf.ones((2, 7)), tf.constant([1, 3]), tf.constant([5, 7]))
    grads = [*map(tf.constant, gradients(1)[:2]), sparse, x, tf.constant(2.0)]

    def apply():
        optimizer.apply(grads, params)

    name = f"fusedops.tf.keras.optimizers.{kind}: the gradient of {params[3].path} must {sentence}"
    with pytest.raises(ValueError, match=re.escape(name)):
        (tf.function(apply) if way == "graph" else apply)()
    for p, expected in zip([*params, *optimizer.variables], before, strict=True):
        assert_same_bits(p.numpy(), expected)
    assert optimizer.iterations == 0


def test_gradients_that_are_cast(keras, optimizers):
    """Keras casts gradients of another real dtype and objects convertible to tensors."""
    found = []
    for module in (optimizers, keras.optimizers):
        weights = [keras.Variable([1.0, 2.0]) for _ in range(3)]
        module.SGD(0.5).apply([np.ones(2, "float16"), np.ones(2, "int32"), [1.0, 1.0]], weights)
        found.append([w.numpy().tolist() for w in weights])
    assert found[0] == found[1] == [[0.5, 1.5]] * 3


@pytest.mark.parametrize("betas", [(0, 0.5), (0.5, 0), (0, 0)])
@pytest.mark.parametrize("given", ["numbers", "tensors", "sparse"])
@pytest.mark.parametrize("kind", ["AdamW", "Adam"])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_moments_that_do_not_cancel(keras, optimizers, betas, given, kind, amsgrad):
    """Small gradients after large ones, with the kernel and without it, against the formula in float64."""
    import tensorflow as tf

    random = np.random.default_rng(0)
    start = random.normal(size=(5, 3)).astype("float32")
    variable = keras.Variable(start)
    beta_1, beta_2 = map(tf.constant, map(float, betas)) if given == "tensors" else betas
    optimizer = getattr(optimizers, kind)(0.5, beta_1=beta_1, beta_2=beta_2, weight_decay=0.0, amsgrad=amsgrad)
    p, m, v, largest, parts, magnitude = start.astype("float64"), 0.0, 0.0, 0.0, 0.0, np.abs(start).astype("float64")
    for step, size in enumerate((1e4, 1e-3, 1e4, 1e-3), 1):
        g = (size * random.normal(size=(5, 3))).astype("float32")
        x = tf.IndexedSlices(tf.constant(g), tf.range(5), tf.constant([5, 3])) if given == "sparse" else tf.constant(g)
        optimizer.apply([x], [variable])
        g = g.astype("float64")
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        largest = np.maximum(largest, v) if amsgrad else v
        parts = betas[0] * parts + (1 - betas[0]) * np.abs(g)
        corrected = 0.5 * np.sqrt(1 - betas[1] ** step) / (1 - betas[0] ** step)
        update = corrected * m / (np.sqrt(largest) + 1e-7)
        p, magnitude = p - update, magnitude + np.abs(update)
        assert_accurate(optimizer._momentums[0].numpy(), m, parts, 6 * step)
        assert_accurate(variable.numpy(), p, magnitude, 24 * step)  # like the step roundings in tests.helpers.updates
