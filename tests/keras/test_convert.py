"""fusedops.tf.keras.convert and revert: replaced and skipped layers, the report, and training after the conversion."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.accuracy import assert_as_accurate, assert_losses_overlap
from tests.helpers.converting import converted
from tests.helpers.keras_models import gradients, policy, twin, values
from tests.helpers.numerics import assert_same_bits
from tests.helpers.running import environment, interpreter

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16", "float64")


def sequential(keras):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((12,)),
            layers.Dense(16, activation="gelu"),
            layers.LayerNormalization(),
            layers.Dense(16, activation="silu", use_bias=False),
            layers.RMSNormalization(),
            layers.Dense(5),
            layers.Softmax(),
        ]
    )


def functional(keras):
    """With a layer that is called twice, and a residual."""
    layers = keras.layers
    inputs = keras.Input((12,))
    shared = layers.Dense(12, activation="relu")
    x = shared(shared(inputs))
    x = layers.LayerNormalization(epsilon=1e-5)(layers.Add()([x, inputs]))
    return keras.Model(inputs, [layers.Softmax()(x), layers.Dense(3, activation="tanh")(x)])


def nested(keras):
    inputs = keras.Input((12,))
    return keras.Model(inputs, keras.layers.RMSNormalization()(sequential(keras)(inputs)))


def subclassed(keras):
    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.norms = [keras.layers.LayerNormalization(), keras.layers.RMSNormalization()]
            self.dense = {"up": keras.layers.Dense(24, activation="gelu"), "down": keras.layers.Dense(12)}

        def build(self, shape):
            for norm in self.norms:
                norm.build(shape)
            self.dense["up"].build(shape)
            self.dense["down"].build((*shape[:-1], 24))

        def call(self, x):
            for norm in self.norms:
                x = norm(x)
            return x + self.dense["down"](self.dense["up"](x))

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.blocks = [Block(), Block()]

        def call(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    model = Model()
    model(np.zeros((1, 12)))
    return model


BUILDERS = {function.__name__: function for function in (sequential, functional, nested, subclassed)}


@pytest.fixture(params=BUILDERS)
def build(request, keras):
    return lambda: BUILDERS[request.param](keras)


def batch(random, rows=6):
    return random.normal(size=(rows, 12)).astype("float32")


def ours(model):
    return {layer for layer in model._flatten_layers() if type(layer).__module__.startswith("fusedops.")}


@pytest.mark.parametrize("name", POLICIES)
def test_results_are_as_accurate_and_revert_brings_the_bits_back(fk, keras, build, name, random):
    with policy(keras, name):
        model = build()
    exact, x = twin(keras, build, model), batch(random, 64)
    # TensorFlow's gelu in float64 divides by a root of 2 of float32.
    dtype = "float32" if name == "float64" else model.compute_dtype
    results = lambda model: values(model(x)) + gradients(model, x)  # noqa: E731
    plain = results(model)
    assert converted(fk, model) is model
    assert ours(model)
    assert_as_accurate(results(model), plain, results(exact), dtype)
    assert fk.revert(model) is model
    assert not ours(model)
    for got, expected in zip(values(model(x)), plain, strict=False):  # a GPU's gradients may differ by themselves
        assert_same_bits(got, expected)


def test_layers_weights_names_and_configs_stay(fk, build):
    model = build()
    things = lambda: [*model._flatten_layers(), *model.variables]  # noqa: E731
    before, names = things(), [weight.path for weight in model.variables]
    configs = lambda: [layer.get_config() for layer in model._flatten_layers() if not layer._layers]  # noqa: E731
    configs_before = configs()
    converted(fk, model)
    assert all(now is then for now, then in zip(things(), before, strict=True))
    assert [weight.path for weight in model.variables] == names
    assert configs() == configs_before


def test_only_exact_classes_are_replaced(fk, keras, capsys):
    class Mine(keras.layers.LayerNormalization):
        def call(self, inputs):
            return inputs

    class SubclassOfFusedops(fk.RMSNormalization):
        pass

    model = keras.Sequential([Mine(name="mine"), SubclassOfFusedops(), fk.AddRMSNormalization()])
    kinds = [type(layer) for layer in model.layers]
    fk.convert(model)
    assert [type(layer) for layer in model.layers] == kinds
    assert "kept Mine 'mine': a subclass of LayerNormalization" in capsys.readouterr().out
    fk.revert(model)
    assert [type(layer) for layer in model.layers] == kinds


def test_report(fk, keras, capsys, monkeypatch):
    monkeypatch.setattr("fusedops.tf.keras_backend.has_gpu", lambda: True)  # every machine gives the same report
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6, 4)),
            layers.Dense(4, activation="gelu"),
            layers.Dense(4),
            layers.Dense(4, use_bias=False, name="slim"),
            layers.Dropout(0.1),
            layers.LayerNormalization(axis=1, name="columns"),
            layers.Dense(4, activation="elu", name="bent"),
            layers.EinsumDense("abc,cd->abd", output_shape=(None, 4), name="einsum"),
            layers.Softmax(),
        ],
        name="example",
    )
    fk.convert(model)
    assert capsys.readouterr().out.splitlines() == [
        "fusedops: 4 of 8 layers of 'example' replaced",
        "     2 Dense   -> fusedops.keras_layers.dense.Dense",
        "     1 Dropout -> fusedops.keras_layers.dropout.Dropout",
        "     1 Softmax -> fusedops.keras_layers.softmax.Softmax",
        "  kept Dense 'bent': activation elu is not among those of the kernel, 19% of the parameters",
        "  kept Dense 'slim': without a bias and an activation there is nothing to fuse, 15% of the parameters",
        "  kept EinsumDense 'einsum': without a bias and an activation there is nothing to fuse, 15% of the parameters",
        "  kept LayerNormalization 'columns': axis 1 is not the last, 12% of the parameters",
        "  with the same seed, dropout drops other elements than before: its random numbers are fusedops's",
    ]
    fk.convert(model)
    assert "0 of 8 layers of 'example' replaced, 4 are fusedops's already" in capsys.readouterr().out
    fk.convert(model, verbose=False)
    assert not capsys.readouterr().out


def test_the_report_counts_layers_with_kernels(fk, keras, capsys):
    layers = keras.layers
    model = keras.Sequential(
        [
            fk.Dense(4, use_bias=False, name="plain"),  # a fusedops layer without a kernel
            fk.GatedDense(4),
            layers.LayerNormalization(axis=1),
            layers.LayerNormalization(),
            layers.Softmax(axis=2),
        ],
        name="example",
    )
    rest = [
        "     1 LayerNormalization -> fusedops.keras_layers.normalization.LayerNormalization",
        "     1 LayerNormalization -> fusedops.keras_layers.normalization.LayerNormalization"
        ", if axis 1 is the last of its input",
        "     1 Softmax            -> fusedops.keras_layers.softmax.Softmax, if axis 2 is the last of its input",
        "  kept Dense 'plain': without a bias and an activation there is nothing to fuse",
    ]
    fk.convert(model)
    headline = "fusedops: 1 of 5 layers of 'example' replaced, 2 more on a condition, 1 are fusedops's already"
    assert capsys.readouterr().out.splitlines() == [headline, *rest]
    fk.convert(model)
    headline = "fusedops: 0 of 5 layers of 'example' replaced, 2 are fusedops's already"
    assert capsys.readouterr().out.splitlines() == [headline, rest[-1]]


@pytest.mark.parametrize("wrong", [None, "model", [1]])
def test_other_objects_than_models_are_refused(fk, wrong):
    for function in (fk.convert, fk.revert):
        with pytest.raises(TypeError, match=f"{function.__name__}: model must be a Keras 3 model or layer; got"):
            function(wrong)


@pytest.fixture
def counted(fk, monkeypatch):
    """Counts the calls and traces of the fusedops LayerNormalization."""
    calls = []
    call = fk.LayerNormalization.call
    monkeypatch.setattr(fk.LayerNormalization, "call", lambda self, inputs: calls.append(None) or call(self, inputs))
    return calls


def compiled(keras, **options):
    model = keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(16, activation="gelu"),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(5),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, **options)
    return model


def fit(model, random, epochs=1):
    labels = random.integers(0, 5, size=12)
    return model.fit(batch(random, 12), labels, batch_size=6, epochs=epochs, verbose=0, shuffle=False).history["loss"]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_compiled_model_trains_on(fk, keras, random, counted, jit_compile, capsys):
    model = compiled(keras, jit_compile=jit_compile)
    other = keras.models.clone_model(model)
    other.compile(
        keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(True), jit_compile=jit_compile
    )
    other.set_weights(model.get_weights())
    state = random.bit_generator.state

    def train(model):
        random.bit_generator.state = state
        losses = fit(model, random)
        if model is not other:
            fk.convert(model)
        return losses + fit(model, random, epochs=2)

    expected = train(other)
    slots = lambda: list(model.optimizer.variables)  # noqa: E731
    got = train(model)
    assert counted
    assert "SparseCategoricalCrossentropy -> fusedops.keras_layers.losses" in capsys.readouterr().out
    assert int(model.optimizer.iterations) == 6
    before = slots()
    fk.revert(model)
    assert all(now is then for now, then in zip(slots(), before, strict=True))
    assert type(model.loss) is keras.losses.SparseCategoricalCrossentropy
    assert_losses_overlap(got, expected, "float32", steps=6)
    assert model.jit_compile is jit_compile


def test_every_function_is_traced_anew(fk, keras, random, counted):
    model = compiled(keras, jit_compile=False)
    x = batch(random)
    for use in (model.predict, lambda x, verbose: model.evaluate(x, np.zeros(len(x)), verbose=verbose)):
        fk.revert(model)
        use(x, verbose=0)
        assert not counted
        converted(fk, model)
        use(x, verbose=0)
        assert counted
        counted.clear()


def test_traces_of_the_layers_own_are_dropped(fk, keras, tf_backend, random, counted):
    tf = tf_backend.tf

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.norm = keras.layers.LayerNormalization()
            self.twice = tf.function(lambda x: self.norm(self.norm(x)))

        @tf.function
        def call(self, x):
            return self.norm(x)

    model, x = Model(), batch(random)
    model(x), model.twice(x)
    converted(fk, model)
    model(x)
    assert len(counted) == 1
    model.twice(x)
    assert len(counted) == 3
    fk.revert(model)
    model(x), model.twice(x)
    assert len(counted) == 3


def test_what_of_tensorflow_has_another_name(fk, keras, tf_backend, random, counted, monkeypatch, capsys):
    tf = tf_backend.tf

    class Model(keras.Model):
        def __init__(self, name):
            super().__init__(name=name)
            self.norm = keras.layers.LayerNormalization()
            self.step = tf.function(self.norm.__call__)

        @tf.function
        def call(self, x):
            return self.norm(x)

    model, method = Model("traced"), vars(Model)["call"]
    model(batch(random))
    monkeypatch.delattr(type(model.step), "_clone")
    monkeypatch.delattr(method, "_descriptor_cache")
    fk.convert(model)
    assert type(model.norm) is fk.LayerNormalization
    sentence = "this version of TensorFlow keeps the old traces of traced.step, traced.call"
    assert sentence in capsys.readouterr().out
    with pytest.warns(UserWarning, match=f"revert: {sentence}"):
        fk.revert(model)
    assert type(model.norm) is keras.layers.LayerNormalization


@pytest.mark.parametrize("moment", ["on_train_begin", "on_epoch_end", "on_train_batch_end", "on_test_batch_end"])
def test_a_callback_converts_and_reverts(fk, keras, random, counted, moment):
    model, classes = compiled(keras, jit_compile=False), []

    def switch(*arguments, **options):
        is_ours = type(model.layers[1]) is fk.LayerNormalization
        (fk.revert if is_ours else lambda model: converted(fk, model))(model)
        classes.append(is_ours)

    callback = keras.callbacks.Callback()
    setattr(callback, moment, switch)
    x, labels = batch(random, 12), random.integers(0, 5, size=12)
    model.fit(x, labels, batch_size=6, epochs=2, verbose=0, callbacks=[callback], validation_data=(x, labels))
    assert counted
    assert len(classes) == {"on_train_begin": 1, "on_epoch_end": 2}.get(moment, 4)
    fk.revert(model)
    before = len(counted)
    model.predict(x, callbacks=[keras.callbacks.LambdaCallback(on_predict_batch_end=switch)], batch_size=6, verbose=0)
    assert len(counted) > before


@pytest.mark.slow
def test_xla_is_turned_off_where_its_kernels_are_missing(fk, keras, random, monkeypatch, capsys):
    from fusedops.tf import xla

    model = compiled(keras, jit_compile=True)
    fit(model, random)
    monkeypatch.setattr(xla, "fault", "the library is stale")
    fk.convert(model)
    assert "XLA is turned off for this model: the library is stale" in capsys.readouterr().out
    assert model.jit_compile is False
    assert np.isfinite(fit(model, random)).all()
    fk.revert(model)
    assert model.jit_compile is True
    fit(model, random)


def test_an_explicit_choice_of_xla_stays(fk, keras, monkeypatch, capsys):
    from fusedops.tf import xla

    for jit_compile in (False, True):
        monkeypatch.setattr(xla, "fault", None)
        model = converted(fk, compiled(keras, jit_compile=jit_compile), verbose=True)
        assert model.jit_compile is jit_compile
        assert fk.revert(model).jit_compile is jit_compile
    assert "XLA" not in capsys.readouterr().out


def test_a_model_that_computes_its_own_loss(fk, keras):
    class Model(keras.Sequential):
        pass

    model = Model([keras.layers.Softmax()])

    def loss(self):
        raise RuntimeError("nobody asked")

    Model.loss = property(loss, lambda self, value: None)
    converted(fk, model)
    assert type(model.layers[0]) is fk.Softmax
    fk.revert(model)
    model.compiled = True
    with pytest.raises(RuntimeError, match="nobody asked"):
        fk.convert(model)
    assert type(model.layers[0]) is keras.layers.Softmax  # unchanged


def test_other_losses_stay(fk, keras, capsys):
    model = compiled(keras)
    model.compile("sgd", [keras.losses.SparseCategoricalCrossentropy(name="of_probabilities")])
    fk.convert(model)
    assert type(model.loss[0]) is keras.losses.SparseCategoricalCrossentropy
    assert "kept SparseCategoricalCrossentropy 'of_probabilities': from_logits is not set" in capsys.readouterr().out
    model.compile("sgd", "mse")
    fk.convert(model)
    assert "mse" not in capsys.readouterr().out


@pytest.mark.parametrize("builder", [sequential, functional, nested])
def test_a_converted_model_is_saved_and_loaded(fk, keras, random, tmp_path, builder):
    model, x = converted(fk, builder(keras)), batch(random)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert len(ours(loaded)) == len(ours(model))
    for got, expected in zip(values(loaded(x)), values(model(x)), strict=True):
        assert_same_bits(got, expected)
    assert "fusedops" in model.to_json() and "fusedops" not in fk.revert(model).to_json()  # a file of Keras alone


@pytest.mark.parametrize("again", [False, True])
def test_a_converted_model_is_quantized(fk, keras, random, again):
    """Keras's code then computes it, with the same bits; and so after `revert`."""
    model, x = sequential(keras), batch(random)
    other = keras.models.clone_model(model)
    other.set_weights(model.get_weights())
    dense = lambda model: [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]  # noqa: E731
    converted(fk, model)
    if again:
        fk.revert(model)
    for each in (model, other):
        each.quantize("int8")
    assert [layer.quantization_mode for layer in dense(model)] == ["int8"] * 3
    fk.revert(model)
    for got, expected in zip(values(model(x)), values(other(x)), strict=True):
        assert_same_bits(got, expected)


def test_a_layer_and_one_that_is_not_built(fk, keras, random):
    layer = converted(fk, keras.layers.Dense(4, activation="gelu"))
    assert type(layer) is fk.Dense
    assert layer(batch(random)).shape == (6, 4)


@pytest.mark.slow
def test_keras_hub_is_not_imported(tf_cpu):
    code = (
        "import sys, keras, fusedops.tf.keras as fk\n"
        "fk.convert(keras.Sequential([keras.Input((4,)), keras.layers.Softmax()]))\n"
        "assert not any(name.startswith('keras_hub') for name in sys.modules)\n"
    )
    interpreter("-c", code, env=environment("cpu")).check_returncode()
