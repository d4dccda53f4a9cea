"""`fusedops.tf.keras.convert(model, fuse_loss=True)`: language models that compute no logits in training."""

from __future__ import annotations

import copy
import gc
import importlib.util
import pickle
import weakref

import h5py
import numpy as np
import pytest

from tests.helpers.accuracy import assert_as_accurate, assert_losses_overlap
from tests.helpers.converting import converted
from tests.helpers.keras_models import policy, twin, values
from tests.helpers.numerics import assert_same_bits

VOCABULARY, LENGTH, HIDDEN, BATCH = 37, 6, 16, 4
LLAMA = {
    "vocabulary_size": VOCABULARY,
    "hidden_dim": HIDDEN,
    "intermediate_dim": 24,
    "num_layers": 1,
    "num_query_heads": 2,
    "num_key_value_heads": 1,
}
GEMMA = {**LLAMA, "head_dim": 8, "intermediate_dim": 48}
GPT2 = {
    "vocabulary_size": VOCABULARY,
    "hidden_dim": HIDDEN,
    "intermediate_dim": 24,
    "num_layers": 1,
    "num_heads": 2,
    "dropout": 0.0,
    "max_sequence_length": LENGTH,
}
FAMILIES = {  # separate and tied heads, with a soft cap
    "llama": ("Llama", LLAMA),
    "gemma2": ("Gemma", {**GEMMA, "final_logit_soft_cap": 2.0}),
    "gpt2": ("GPT2", GPT2),
    "mistral": ("Mistral", LLAMA),
    "phi3": ("Phi3", LLAMA),
    "qwen": ("Qwen", {**LLAMA, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {**LLAMA, "head_dim": 8}),
}


def dense(keras, **options):
    """The head is Keras's Dense with a bias; the mask comes from an embedding."""
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, HIDDEN, mask_zero=True)(tokens)
    x = keras.layers.LayerNormalization()(keras.layers.Dense(HIDDEN, activation="gelu")(x))
    head = keras.layers.Dense(VOCABULARY, bias_initializer="normal", **options)
    return keras.Model(tokens, head(x), name="dense")


def in_float32(keras):
    """The head may have another dtype than the rest."""
    return dense(keras, dtype="float32")


def tied(keras):
    """The head may compute in another dtype than its layer."""
    if not hasattr(keras.layers, "ReversibleEmbedding"):
        pytest.skip("this Keras has no ReversibleEmbedding")
    tokens = keras.Input((LENGTH,), dtype="int32")
    embedding = keras.layers.ReversibleEmbedding(VOCABULARY, HIDDEN, reverse_dtype="float32", logit_soft_cap=2.0)
    return keras.Model(tokens, embedding(keras.layers.LayerNormalization()(embedding(tokens)), reverse=True))


def capped(keras, cap=2.0, **options):
    """Gemma 4 caps its logits like this."""
    model = dense(keras, **options)
    return keras.Model(model.input, cap * keras.ops.tanh(model.output / cap), name="capped")


OWN = {"dense": dense, "in_float32": in_float32, "tied": tied, "capped": capped}


def compiled(keras, model, loss=None, **options):
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    options = {"weighted_metrics": [], "jit_compile": False, **options}
    model.compile(options.pop("optimizer", None) or keras.optimizers.SGD(0.5), loss, **options)
    return model


def hub_model(family):
    if importlib.util.find_spec("keras_hub") is None:
        pytest.skip("keras_hub is not installed")
    import keras_hub

    name, config = FAMILIES[family]
    backbone = getattr(keras_hub.models, f"{name}Backbone")(**config)
    return getattr(keras_hub.models, f"{name}CausalLM")(backbone=backbone, preprocessor=None, name="language")


def builder(keras, family):
    return lambda: OWN[family](keras) if family in OWN else hub_model(family)


@pytest.fixture
def model(keras):
    return compiled(keras, dense(keras))


@pytest.fixture
def llama(keras):
    return compiled(keras, hub_model("llama"))


def batch(random, model):
    """Inputs, labels and the weight of each label."""
    tokens = random.integers(0, VOCABULARY, (BATCH, LENGTH))
    inputs = {"token_ids": tokens, "padding_mask": np.ones((BATCH, LENGTH), "int32")}
    labels = random.integers(0, VOCABULARY, (BATCH, LENGTH))
    weights = random.random((BATCH, LENGTH)).astype("float32")
    return inputs if isinstance(model.input, dict) else tokens, labels, weights


def recorder(keras):
    """An optimizer that records the gradients and changes nothing."""

    class Recorder(keras.optimizers.Optimizer):
        def apply_gradients(self, pairs, loss=None):
            self.seen = [gradient for gradient, _ in pairs]

    return Recorder(1.0)


def loss_and_gradients(keras, model, data, convert=None, **options):
    optimizer = recorder(keras)
    compiled(keras, model, optimizer=optimizer, run_eagerly=True, **options)
    if convert:
        convert(model)
    logs = model.train_step(tuple(map(as_tensors(keras), data)))
    return values([logs["loss"], *optimizer.seen])


def as_tensors(keras):
    return lambda data: keras.tree.map_structure(keras.ops.convert_to_tensor, data)


def in_float64(model):
    """Casts the model, including a head with its own dtype."""
    for layer in model.layers:
        if layer.compute_dtype == "float32":
            layer.dtype_policy = "float64"
        if getattr(layer, "reverse_dtype", None):
            layer.reverse_dtype = "float64"
    return model


def heads_called(monkeypatch, model):
    """A list that collects later outputs of the layer with the logits."""
    calls = []
    layer = model.outputs[0]._keras_history.operation
    call = layer.call

    def recording(x, *args, **options):
        y = call(x, *args, **options)
        if y.shape[-1] == VOCABULARY:
            calls.append(y)
        return y

    monkeypatch.setattr(layer, "call", recording)
    return calls


@pytest.mark.parametrize("name", ["float32", "mixed_bfloat16", "float64"])
@pytest.mark.parametrize("family", [*OWN, *FAMILIES])
def test_loss_and_gradients(keras, fk, family, name, random, monkeypatch):
    """Errors against float64 are not larger than with logits."""
    build = builder(keras, family)
    with policy(keras, name):
        model = build()
    exact, data = in_float64(twin(keras, build, model)), batch(random, model)
    of_float64 = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")
    truth = loss_and_gradients(keras, exact, data, loss=of_float64)
    loss = of_float64 if name == "float64" else None
    plain = loss_and_gradients(keras, model, data, lambda model: converted(fk, model), loss=loss)
    calls = heads_called(monkeypatch, model)
    got = loss_and_gradients(keras, model, data, lambda model: converted(fk, model, fuse_loss=True), loss=loss)
    assert not calls
    # TensorFlow's gelu in float64 divides by a root of 2 of float32.
    assert_as_accurate(got, plain, truth, "float32" if name == "float64" else model.compute_dtype)


@pytest.mark.parametrize(
    ("family", "name", "options"),
    [
        ("dense", "float32", {"run_eagerly": True}),
        ("dense", "mixed_float16", {}),  # its loss is scaled
        ("dense", "mixed_bfloat16", {"jit_compile": True}),
        ("gemma2", "float32", {"steps_per_execution": 2}),
        pytest.param("gemma2", "mixed_bfloat16", {"jit_compile": True}, marks=pytest.mark.slow),
    ],
)
def test_fit_and_evaluate(keras, fk, family, name, options, random, monkeypatch):
    from fusedops.tf import xla

    if options.get("jit_compile") and xla.fault:
        pytest.skip(xla.fault)
    with policy(keras, name):
        model = builder(keras, family)()
    x, y, sample_weight = batch(random, model)
    before, losses = model.get_weights(), {}
    for fuse_loss in (False, True):
        model.set_weights(before)
        compiled(keras, model, **options)
        converted(fk, model, fuse_loss=fuse_loss)
        calls = heads_called(monkeypatch, model)
        run = model.fit(x, y, batch_size=2, epochs=3, sample_weight=sample_weight, shuffle=False, verbose=0)
        losses[fuse_loss] = [*run.history["loss"], model.evaluate(x, y, sample_weight=sample_weight, verbose=0)]
        assert bool(calls) is not fuse_loss
        assert model.jit_compile is options.get("jit_compile", False)
    assert losses[True][-1] < losses[True][0]
    assert_losses_overlap(losses[True], losses[False], model.compute_dtype, steps=6)


def test_no_tensor_has_the_size_of_the_logits(keras, fk, tf_backend, llama, random):
    tf = tf_backend.tf
    data = tuple(map(as_tensors(keras), batch(random, llama)))

    def logits():
        graph = tf.function(llama.train_step).get_concrete_function(data).graph
        inner = [function.graph for function in getattr(graph, "_functions", {}).values() if hasattr(function, "graph")]
        shapes = [y.shape for each in (graph, *inner) for op in each.get_operations() for y in op.outputs]
        return [shape for shape in shapes if shape.rank and shape.num_elements() == BATCH * LENGTH * VOCABULARY]

    converted(fk, llama)
    assert logits()
    converted(fk, llama, fuse_loss=True)
    assert not logits()


def test_without_the_library_for_xla(keras, fk, model, random, monkeypatch, capsys):
    """Keras compiles no step with XLA, and graphs use the fused loss, too."""
    from fusedops.tf import xla

    x, y, _ = batch(random, model)
    compiled(keras, model, jit_compile=True)
    monkeypatch.setattr(xla, "fault", "the library is stale")
    fk.convert(model, fuse_loss=True)
    assert "XLA is turned off for this model: the library is stale" in capsys.readouterr().out
    calls = heads_called(monkeypatch, model)
    assert model.train_on_batch(x, y) and not calls


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
@pytest.mark.parametrize("ignore_class", [None, 3])
@pytest.mark.parametrize("weighted", ["not", "rows", "labels"])
@pytest.mark.parametrize("column", [False, True])
def test_weights_masks_and_reductions(keras, fk, model, reduction, ignore_class, weighted, column, random):
    """Each case has the embedding's mask."""
    x, y, weights = batch(random, model)
    x[1, -2:] = 0  # masked
    y[0, 2:4] = 3
    sample_weight = {"not": None, "rows": weights[:, :1], "labels": weights}[weighted]
    if column:
        y = y[..., None]
    loss = keras.losses.SparseCategoricalCrossentropy(True, ignore_class=ignore_class, reduction=reduction)
    found = []
    for fuse_loss in (False, True):
        compiled(keras, model, loss=copy.copy(loss), run_eagerly=True)
        converted(fk, model, fuse_loss=fuse_loss)
        found.append(model.test_on_batch(x, y, sample_weight))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


@pytest.mark.parametrize("sample_weight", [None, "rows"])
def test_class_weights_and_z_loss(keras, fk, model, sample_weight, random, monkeypatch):
    """The options of the loss are those of a loss of logits."""
    x, y, weights = batch(random, model)
    x[1, -2:] = 0  # masked
    sample_weight = weights[:, :1] if sample_weight else None
    before, found = model.get_weights(), []
    own = {"z_loss": 0.1, "class_weight": [0.25 + label % 3 for label in range(VOCABULARY)]}
    for fuse_loss in (False, True):
        for options in ({}, own):
            model.set_weights(before)
            compiled(keras, model, loss=fk.SparseCategoricalCrossentropy(True, ignore_class=3, **options))
            converted(fk, model, fuse_loss=fuse_loss)
            calls = heads_called(monkeypatch, model)
            found.append([model.train_on_batch(x, y, sample_weight) for _ in range(3)])
            assert bool(calls) is not fuse_loss
    np.testing.assert_allclose(found[2:], found[:2], rtol=1e-5)
    assert not np.allclose(found[1], found[0], rtol=1e-2)


def test_class_weights_of_fit(keras, fk, random, monkeypatch):
    """Keras's `class_weight` weights samples: the loss is divided by their number."""
    tokens = keras.Input((LENGTH,), dtype="int32")
    states = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(VOCABULARY, HIDDEN)(tokens))
    model = keras.Model(tokens, keras.layers.Dense(VOCABULARY)(states))
    x, y, _ = batch(random, model)
    before, found = model.get_weights(), []
    weights = {label: 0.25 + label % 3 for label in range(VOCABULARY)}
    for fuse_loss, class_weight in ((False, weights), (True, weights), (True, None)):
        model.set_weights(before)
        compiled(keras, model)
        converted(fk, model, fuse_loss=fuse_loss)
        calls = heads_called(monkeypatch, model)
        run = model.fit(x, y[:, 0], epochs=3, class_weight=class_weight, shuffle=False, verbose=0)
        assert bool(calls) is not fuse_loss
        found.append(run.history["loss"])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    assert not np.allclose(found[2], found[0], rtol=1e-2)


def test_losses_that_layers_add(keras, fk, random):
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, HIDDEN, embeddings_regularizer="l2")(tokens)
    x = keras.layers.Dense(HIDDEN, activity_regularizer="l2")(x)
    model = keras.Model(tokens, keras.layers.Dense(VOCABULARY, kernel_regularizer="l2")(x))
    data = batch(random, model)
    plain = loss_and_gradients(keras, model, data, lambda model: converted(fk, model))
    got = loss_and_gradients(keras, model, data, lambda model: converted(fk, model, fuse_loss=True))
    assert len(model.losses) == 3 and hasattr(type(model), "original")
    for ours, theirs in zip(got, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("container", ["list", "dict"])
def test_losses_with_weights_in_containers(keras, fk, model, container, random):
    x, y, _ = batch(random, model)
    found = []
    for fuse_loss in (False, True):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        name = model.output_names[0]
        loss, weights = ([loss], [0.25]) if container == "list" else ({name: loss}, {name: 0.25})
        compiled(keras, model, loss=loss, loss_weights=weights)
        converted(fk, model, fuse_loss=fuse_loss)
        found.append(model.test_on_batch(x, y))
    assert hasattr(type(model), "original")
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


@pytest.mark.parametrize("within", [lambda each: {"logits": each}, lambda each: [each]], ids=["dict", "list"])
def test_outputs_in_containers(keras, fk, model, within, random, monkeypatch):
    """Keras expects losses and labels in the structure of the model's outputs."""
    x, y, _ = batch(random, model)
    model = keras.Model(model.input, within(model.output))
    before, found = model.get_weights(), []
    for fuse_loss in (False, True):
        model.set_weights(before)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        compiled(keras, model, loss=within(loss))
        converted(fk, model, fuse_loss=fuse_loss)
        calls = heads_called(monkeypatch, model)
        history = model.fit(x, within(y), batch_size=2, epochs=2, shuffle=False, verbose=0).history["loss"]
        found.append([*history, model.evaluate(x, within(y), verbose=0)])
        assert bool(calls) is not fuse_loss
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_everything_else_has_logits(keras, fk, llama, random):
    """Calls, also in training, predictions and generated tokens."""
    x, _, _ = batch(random, llama)
    prompts = {**x, "padding_mask": np.repeat([[1, 1, 0, 0, 0, 0]], BATCH, 0)}

    def found():
        generated = llama.generate(prompts, stop_token_ids=None)["token_ids"]
        return values([llama(x), llama(x, training=True), llama.predict(x, verbose=0), generated])

    compiled(keras, llama, sampler="greedy")
    converted(fk, llama)
    expected = found()
    converted(fk, llama, fuse_loss=True)
    assert type(llama) is not type(llama).original
    for got, right in zip(found(), expected, strict=True):
        assert_same_bits(got, right)


@pytest.mark.parametrize(
    "options",
    [
        {"run_eagerly": True},
        {},
        {"steps_per_execution": 2},
        {"jit_compile": True},
    ],
    ids=["eagerly", "graph", "steps", "xla"],
)
def test_an_optimizer_that_calls_the_model(keras, fk, model, options, random, monkeypatch):
    """Like one that evaluates the gradient at another point. Only the first call in each step is for the loss."""
    from fusedops.tf import xla

    if options.get("jit_compile") and xla.fault:
        pytest.skip(xla.fault)
    x, y, _ = batch(random, model)
    tokens = keras.ops.convert_to_tensor(x)
    norm = keras.Variable(0.0)

    class Calling(keras.optimizers.SGD):
        def apply_gradients(self, pairs, loss=None):
            norm.assign_add(keras.ops.sum(keras.ops.square(model(tokens))))
            super().apply_gradients(pairs)

    before, found = model.get_weights(), []
    for fuse_loss in (False, True):
        model.set_weights(before)
        norm.assign(0.0)
        compiled(keras, model, optimizer=Calling(0.5), **options)
        converted(fk, model, fuse_loss=fuse_loss)
        found.append([*model.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0).history["loss"], float(norm)])
    assert hasattr(type(model), "original") and found[0][-1] > 0
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


def test_the_report(keras, fk, llama, capsys):
    def report(**options):
        fk.convert(llama, **options)
        return capsys.readouterr().out

    assert "fuse_loss=True would leave out the logits of 'language' in training: 0 kB a token" in report()
    text = report(fuse_loss=True)
    assert "1 LlamaCausalLM -> fusedops.tf.keras.fused_loss.WithoutLogits" in text
    assert "'language' makes no logits in training, which saves 0 kB a token" in text
    assert "'language' makes no logits in training" in report()  # unchanged until `revert`
    kind = type(llama).original
    assert type(fk.revert(llama)) is kind
    llama.compile(weighted_metrics="auto")  # KerasHub's default
    assert "in training: 0 kB a token, if it is compiled without metrics" in report()
    text = report(fuse_loss=True)
    assert "kept LlamaCausalLM 'language': its metrics read the logits" in text
    assert "LlamaBackbone" not in text and "would" not in text and type(llama) is kind


def own_step(keras):
    class Model(keras.Model):
        def train_step(self, data):
            return super().train_step(data)

    model = dense(keras)
    return Model(model.input, model.output)


def own_call(keras):
    class Model(keras.Model):
        def __call__(self, *args, **options):
            return 2.0 * super().__call__(*args, **options)

    model = dense(keras)
    return Model(model.input, model.output)


def patched(keras, name):
    """Sets an attribute on the model itself."""
    model = dense(keras)
    setattr(model, name, lambda *args, **options: {"loss": keras.ops.zeros(())})
    return model


def subclassed(keras):
    class Model(keras.Model):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def call(self, x):
            return self.inner(x)

    return Model(dense(keras))


def changed(keras, change):
    model = dense(keras)
    change(model.layers[-1])
    return model


def without_subclasses(keras):
    class Model(keras.Model):
        def __init_subclass__(cls, *, of, **options):
            super().__init_subclass__(**options)

    model = dense(keras)
    return Model(model.input, model.output)


REASONS = {
    "its class takes no subclass (TypeError: ": without_subclasses,
    "it is no functional model": subclassed,
    "it has another train_step than Keras's": own_step,
    "it has another __call__ than Keras's": own_call,
    "it has another compute_loss than Keras's": lambda keras: patched(keras, "compute_loss"),
    "it has another test_step than Keras's": lambda keras: patched(keras, "test_step"),
    "it is not built: begin it with an Input": lambda keras: keras.Sequential([keras.layers.Dense(VOCABULARY)]),
    "its head is a keras.src.layers.activations.softmax.Softmax": lambda keras: keras.Model(
        (model := dense(keras)).input, keras.layers.Softmax()(model.output)
    ),
    "its head is a keras.src.ops.numpy.GetItem": lambda keras: keras.Model(
        (model := dense(keras)).input, model.output[:, 1:]
    ),
    "its head is a keras.src.layers.core.embedding.Embedding": lambda keras: keras.Model(
        (model := dense(keras)).input, model.layers[1].output
    ),
    "its head is a keras.src.ops.numpy.Multiply": lambda keras: keras.Model(  # another scalar factor than a cap's
        (model := dense(keras)).input, 3.0 * keras.ops.tanh(model.output / 2.0)
    ),
    "its head is called with keywords": lambda keras: keras.Model(
        (model := dense(keras)).input, model.layers[-1](inputs=model.layers[-2].output)
    ),
    "its head has an activation": lambda keras: dense(keras, activation="relu"),
    "its head has an activity regularizer": lambda keras: dense(keras, activity_regularizer="l2"),
    "its head is quantized to int8": lambda keras: changed(keras, lambda head: head.quantize("int8")),
}


@pytest.mark.parametrize("reason", REASONS)
def test_why_a_model_keeps_its_logits(keras, fk, reason, capsys):
    model = compiled(keras, REASONS[reason](keras))
    kind = type(model)
    fk.convert(model, fuse_loss=True)
    assert f"kept {kind.__name__} {model.name!r}: {reason}" in capsys.readouterr().out
    assert type(model) is kind


@pytest.mark.parametrize("container", ["list", "dict"])
def test_outputs_with_losses_of_their_own(keras, fk, container, random, monkeypatch):
    """Two outputs are logits with weights, and one is read by another loss."""
    x, y, weights = batch(random, plain := dense(keras))
    states = plain.layers[-2].output
    outputs = {
        "a": plain.output,
        "b": keras.layers.Dense(VOCABULARY)(states),
        "c": keras.layers.Dense(2, name="c")(states),
    }
    crossentropy = keras.losses.SparseCategoricalCrossentropy
    losses = {"a": crossentropy(from_logits=True), "b": crossentropy(from_logits=True, reduction="sum"), "c": "mse"}
    targets = {"a": y, "b": y[::-1], "c": random.random((BATCH, LENGTH, 2))}
    sample_weight = {"a": weights, "b": None, "c": weights}
    within = dict if container == "dict" else lambda each: list(each.values())
    model = keras.Model(plain.input, within(outputs))
    before, found = model.get_weights(), []
    for fuse_loss in (False, True):
        model.set_weights(before)
        compiled(keras, model, loss=within(losses), loss_weights=within({"a": 1.0, "b": 0.01, "c": 0.5}))
        converted(fk, model, fuse_loss=fuse_loss)
        calls = heads_called(monkeypatch, model)
        data = x, within(targets), within(sample_weight)
        found.append([model.train_on_batch(*data), model.train_on_batch(*data)])
        assert bool(calls) is not fuse_loss
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_a_sequential_model(keras, fk, random, monkeypatch, tmp_path):
    x, y, _ = batch(random, plain := dense(keras))
    model = keras.Sequential(plain.layers, name="sequence")
    before, found = model.get_weights(), []
    for fuse_loss in (False, True):
        model.set_weights(before)
        converted(fk, compiled(keras, model), fuse_loss=fuse_loss)
        calls = heads_called(monkeypatch, model)
        found.append(model.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0).history["loss"])
        assert bool(calls) is not fuse_loss
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is keras.Sequential
    assert_same_bits(values(loaded(x))[0], values(model(x))[0])


@pytest.mark.parametrize("fuse_loss", [False, True])
def test_a_layer_called_with_keywords(keras, fk, model, fuse_loss):
    """Every report looks for the head, whether or not the loss is to be fused."""
    squared = keras.Model(model.input, keras.layers.Multiply()(inputs=[model.output, model.output]))
    converted(fk, compiled(keras, squared), fuse_loss=fuse_loss)
    assert not hasattr(type(squared), "original")


def test_a_layer_named_like_an_operation(keras, fk, model, capsys):
    """It is not part of a soft cap."""

    class Tanh(keras.layers.Layer):
        def call(self, x):
            return 0.5 * x

    halved = keras.Model(model.input, 2.0 * Tanh()(model.output / 2.0))
    fk.convert(compiled(keras, halved), fuse_loss=True)
    assert "its head is a keras.src.ops.numpy.Multiply" in capsys.readouterr().out


def test_rematerialized_or_another_loss(keras, fk, capsys):
    with keras.RematScope("full"):
        model = dense(keras)
    for options, reason in (
        ({}, "it has an activity regularizer or a RematScope"),
        ({"loss": "sparse_categorical_crossentropy"}, "its loss reads probabilities; leave out the softmax"),
        ({"loss": keras.losses.sparse_categorical_crossentropy}, "its loss reads probabilities"),
        ({"loss": "mse"}, "its loss is no SparseCategoricalCrossentropy(from_logits=True)"),
        ({"loss": keras.losses.SparseCategoricalCrossentropy()}, "its loss reads probabilities; leave out the softmax"),
        ({"loss": lambda y, logits: logits[..., 0]}, "its loss is no SparseCategoricalCrossentropy"),
    ):
        fk.convert(compiled(keras, model, **options), fuse_loss=True)
        assert f"kept Functional 'dense': {reason}" in capsys.readouterr().out


def test_not_compiled_yet(keras, fk, capsys):
    model = dense(keras)
    fk.convert(model, fuse_loss=True)
    assert "compiled with a loss: compile it, and convert it again" in capsys.readouterr().out
    fk.convert(compiled(keras, model), fuse_loss=True)
    assert "'dense' makes no logits in training" in capsys.readouterr().out


def test_what_changes_after_the_conversion(keras, fk, model, random, monkeypatch, capsys):
    """Metrics, another loss, a method, a quantized head: the logits are computed as long as the change persists."""
    x, y, _ = batch(random, model)
    converted(fk, model, fuse_loss=True)
    calls = heads_called(monkeypatch, model)
    compiled(keras, model, weighted_metrics=["accuracy"])
    fk.convert(model)
    assert "kept Functional 'dense': its metrics read the logits" in capsys.readouterr().out
    assert "accuracy" in model.train_on_batch(x, y, return_dict=True) and calls
    calls.clear()
    compiled(keras, model)
    assert model.train_on_batch(x, y) and calls  # by Keras's loss
    converted(fk, model)
    calls.clear()
    assert model.train_on_batch(x, y) and not calls
    compiled(keras, model)
    converted(fk, model)
    model.compute_loss = lambda x, y, y_pred, *args, **options: keras.ops.mean(y_pred)
    assert model.train_on_batch(x, y) and calls
    del model.compute_loss
    monkeypatch.undo()
    model.layers[-1].quantize("int8")
    compiled(keras, model, run_eagerly=True)
    converted(fk, model)
    assert np.isfinite(model.test_on_batch(x, y))


def test_lora_of_the_head(keras, fk, tf_backend, llama, random):
    """It is part of the matrix, and is trained alone."""
    data = batch(random, llama)
    head = llama.backbone.token_embedding
    head.enable_lora(2)
    head.lora_embeddings_b.assign(random.normal(size=head.lora_embeddings_b.shape))
    plain = loss_and_gradients(keras, llama, data)
    got = loss_and_gradients(keras, llama, data, lambda model: converted(fk, model, fuse_loss=True))
    for ours, theirs in zip(got, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * np.abs(theirs).max())


def losses_in_turn(keras, fk, model):
    """Converts the model, compiled for eager steps, with the loss of Keras and then with the fused one."""
    for fuse_loss in (False, True):
        compiled(keras, model, run_eagerly=True)
        converted(fk, model, fuse_loss=fuse_loss)
        yield


def test_labels_of_another_rank_need_the_logits(keras, fk, model, random, monkeypatch):
    """Keras squeezes the labels if it can."""
    x, y, _ = batch(random, model)
    found = []
    for _ in losses_in_turn(keras, fk, model):
        calls = heads_called(monkeypatch, model)
        found.append(model.test_on_batch(x, y[..., None, None]))
        assert calls
    assert hasattr(type(model), "original")
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


@pytest.mark.parametrize("shape", [(BATCH,), (BATCH, LENGTH, 2)])
def test_labels_that_keras_refuses(keras, fk, model, shape, random):
    """Keras gets the logits and raises its own message."""
    x, _, _ = batch(random, model)
    refusals = []
    for _ in losses_in_turn(keras, fk, model):
        with pytest.raises(ValueError) as refusal:
            model.test_on_batch(x, np.zeros(shape, "int64"))
        refusals.append(str(refusal.value))
    assert refusals[1] == refusals[0]


@pytest.mark.parametrize("fuse_loss", [False, True])
def test_a_model_is_freed(keras, fk, fuse_loss, random):
    """Also if another model was built around it."""
    model = compiled(keras, dense(keras), run_eagerly=True)
    around = keras.Model(model.input, keras.layers.Softmax()(model(model.input)))
    x, y, _ = batch(random, model)
    converted(fk, model, fuse_loss=fuse_loss)
    model.train_on_batch(x, y)
    alive = weakref.ref(model)
    del model, around
    keras.backend.clear_session()
    gc.collect()
    assert alive() is None


def test_what_is_saved_is_as_without(keras, fk, model, random, tmp_path):
    """The headless part of the model, which its steps call, is not in the file."""
    x, y, _ = batch(random, model)
    saved = []
    for fuse_loss in (False, True):
        converted(fk, model, fuse_loss=fuse_loss)
        model.train_on_batch(x, y)
        model.save_weights(tmp_path / "model.weights.h5")
        with h5py.File(tmp_path / "model.weights.h5") as file:
            saved.append([])
            file.visit(saved[-1].append)
    assert saved[0] == saved[1]


def test_saved_loaded_and_copied(keras, fk, model, random, tmp_path):
    """The loaded model has its original class, and computes logits until it is converted."""
    x, y, _ = batch(random, model)
    converted(fk, model)
    config = model.get_config()
    converted(fk, model, fuse_loss=True)
    assert model.get_config() == config
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    again = pickle.loads(pickle.dumps(model))
    for each in (loaded, again, copy.deepcopy(model)):
        assert type(each) is type(model).original
        assert_same_bits(values(each(x))[0], values(model(x))[0])
        converted(fk, each, fuse_loss=True)
        assert type(each) is type(model)
        np.testing.assert_allclose(each.test_on_batch(x, y), model.test_on_batch(x, y), rtol=1e-6)
    clone = compiled(keras, keras.models.clone_model(model))
    assert np.isfinite(clone.train_on_batch(x, y))


def test_a_registered_class_is_saved_under_its_name(keras, fk, random, tmp_path):
    @keras.saving.register_keras_serializable("mine")
    class Mine(keras.Model):
        pass

    model = dense(keras)
    model = compiled(keras, Mine(model.input, model.output))
    converted(fk, model, fuse_loss=True)
    assert type(model) is not Mine and isinstance(model, Mine)
    model.save(tmp_path / "model.keras")
    assert type(keras.saving.load_model(tmp_path / "model.keras")) is Mine


def test_a_model_of_keras_hub_is_saved(keras, fk, llama, random, tmp_path):
    x, _, _ = batch(random, llama)
    converted(fk, llama, fuse_loss=True)
    llama.save(tmp_path / "model.keras")
    llama.save_to_preset(tmp_path / "preset")
    kind = type(llama).original
    for loaded in (keras.saving.load_model(tmp_path / "model.keras"), kind.from_preset(str(tmp_path / "preset"))):
        assert type(loaded) is kind
        np.testing.assert_allclose(loaded(x), llama(x), rtol=1e-5, atol=1e-5)
    assert type(type(llama).from_config(llama.get_config())(x)) is type(llama(x))


def test_a_callback_converts(keras, fk, model, random, monkeypatch):
    x, y, _ = batch(random, model)
    calls = heads_called(monkeypatch, model)
    made = []

    def convert(epoch, logs):
        made.append(len(calls))
        calls.clear()
        if epoch == 0:
            converted(fk, model, fuse_loss=True)
        else:
            fk.convert(model, verbose=False, fuse_loss=True)

    callback = keras.callbacks.LambdaCallback(on_epoch_end=convert)
    model.fit(x, y, epochs=3, verbose=0, callbacks=[callback])
    assert made[0] and made[1:] == [0, 0]
