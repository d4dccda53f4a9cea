"""The public functions in Keras's functional models: on symbolic tensors, like `keras.ops`."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

from fusedops.functions import OF_TENSORS
from tests.helpers.bad_calls import CASES, arguments, unknown_size_message
from tests.helpers.converting import converted
from tests.helpers.float8 import unquantized_name
from tests.helpers.numerics import DTYPES, assert_same_bits
from tests.helpers.running import ROOT, blocks, environment, interpreter
from tests.helpers.specification import Like
from tests.helpers.tf_functions import signature_shape, value_and_gradients
from tests.specifications import EXPRESSIONS, SPECIFICATIONS

SHAPE = (3, 5, 8)


def symbol(keras, x, known="batch-free"):
    return keras.Input(batch_shape=signature_shape(tuple(x.shape), known), dtype=x.dtype.name)


def of_one_call(keras, backend, spec, sample, inputs, names):
    """A model with these inputs of a call; the other inputs are passed unchanged."""
    symbols = {name: symbol(keras, inputs[name]) for name in names}
    return keras.Model(list(symbols.values()), list(backend.call(spec.name, {**inputs, **symbols}, sample.options)))


def of_every_function(keras, backend, random):
    """A model that calls each function, the first one twice, and the model's inputs."""
    specs = {spec.name: spec for spec in SPECIFICATIONS}
    inputs, outputs, tensors = [], [], []
    for name in (*OF_TENSORS, *OF_TENSORS[:1], *EXPRESSIONS):
        sample = specs.get(unquantized_name(name), specs["gated_act"]).sample(SHAPE, random)
        parameters = sample.inputs if name in EXPRESSIONS else inspect.signature(backend.public(name)).parameters
        given = {key: x for key, x in backend.tensors(sample, "float32").items() if key in parameters}
        symbols = {key: symbol(keras, x) for key, x in given.items() if key in sample.tensors}
        options = {key: value for key, value in sample.options.items() if key in parameters}
        outputs += backend.call(name, {**given, **symbols}, options)
        inputs += symbols.values()
        tensors += (given[key] for key in symbols)
    return keras.Model(inputs, outputs), tensors


def assert_same(got, expected):
    for left, right in zip(got, expected, strict=True):
        assert_same_bits(np.asarray(left), np.asarray(right))


def test_bits_of_calls(tf_backend, keras, spec, random):
    """Forward and backward, at any batch size, which is unknown when the model is created."""
    tf = tf_backend.tf
    for sample in (spec.sample(SHAPE, random), *spec.more_samples(random)):
        inputs = tf_backend.tensors(sample, "float32")
        model = of_one_call(keras, tf_backend, spec, sample, inputs, sample.tensors)

        def call(*tensors, inputs=inputs, sample=sample):
            given = {**inputs, **dict(zip(sample.tensors, tensors, strict=True))}
            return tf_backend.call(spec.name, given, sample.options)

        def call_model(*tensors, model=model):
            return model(list(tensors))

        tensors = [inputs[name] for name in sample.tensors]
        assert_same(*(value_and_gradients(tf, spec, sample, function, tensors) for function in (call_model, call)))


@pytest.mark.parametrize("parameters", ["alike", "float32"])
def test_shapes_and_dtypes(tf_backend, keras, spec, parameters, random):
    """Shapes and dtypes of symbolic results."""
    sample = spec.sample(SHAPE, random)
    for dtype in DTYPES if parameters == "alike" else ("float16", "bfloat16"):
        inputs = tf_backend.tensors(sample, dtype, spec if parameters == "float32" else None)
        symbols = {name: symbol(keras, inputs[name], known="all") for name in sample.tensors}
        outputs = tf_backend.call(spec.name, {**inputs, **symbols}, sample.options)
        expected = tf_backend.call(spec.name, inputs, sample.options)
        assert [(y.shape, y.dtype) for y in outputs] == [(tuple(y.shape), y.dtype.name) for y in expected]


@pytest.mark.parametrize("kind", ["tensor", "tf.Variable", "keras.Variable", "numpy"])
def test_beside_tensors_with_values(tf_backend, keras, spec, kind, random):
    """Each input in turn is the model's; the values of the others are part of its config."""
    make = {
        "tensor": lambda x: x,
        "tf.Variable": tf_backend.tf.Variable,
        "keras.Variable": lambda x: keras.Variable(x, dtype=x.dtype.name),
        "numpy": lambda x: x.numpy(),
    }[kind]
    sample = spec.sample(SHAPE, random)
    inputs = tf_backend.tensors(sample, "float32")
    given = {name: make(x) if name in sample.tensors else x for name, x in inputs.items()}
    expected = tf_backend.call(spec.name, inputs, sample.options)
    for name in sample.tensors:
        model = of_one_call(keras, tf_backend, spec, sample, {**given, name: inputs[name]}, [name])
        for each in (model, keras.models.model_from_json(model.to_json())):
            assert_same(tf_backend.tf.nest.flatten(each([inputs[name]])), expected)


@pytest.mark.parametrize(("operator", "bad"), CASES)
def test_errors(tf_backend, keras, operator, bad):
    """The message of a call, raised when the model is created."""
    inputs = arguments(tf_backend, bad)
    symbols = {
        name: symbol(keras, inputs[name], "all") for name, value in bad.inputs.items() if isinstance(value, Like)
    }
    with pytest.raises((TypeError, ValueError), match="^" + re.escape(bad.sentence)):
        tf_backend.call(operator.name, {**inputs, **symbols}, bad.options)


@pytest.mark.parametrize("name", [None, "named"])
def test_unknown_arguments_are_refused(tf_backend, keras, name):
    x = keras.Input((4,))
    with pytest.raises(TypeError, match=r"^fusedops\.softmax: dim must be left out, since "):
        tf_backend.functions.softmax(x, dim=-1, name=name)
    with pytest.raises(TypeError, match=r"^fusedops\.softmax: positional arguments must be x, and "):
        tf_backend.functions.softmax(x, -1, name=name)


@pytest.mark.parametrize(("operator", "bad"), CASES)
def test_errors_of_unknown_sizes(tf_backend, keras, operator, bad):
    """Raised when the model is created or, at the latest, when it is called."""
    inputs = arguments(tf_backend, bad)
    names = [name for name, value in bad.inputs.items() if isinstance(value, Like)]
    with pytest.raises(tf_backend.errors, match=unknown_size_message(operator, bad)):
        symbols = {name: symbol(keras, inputs[name], "rank") for name in names}
        outputs = tf_backend.call(operator.name, {**inputs, **symbols}, bad.options)
        keras.Model(list(symbols.values()), outputs)([inputs[name] for name in names])


def test_sparse_tensors(tf_backend, keras):
    with pytest.raises(TypeError, match=r"rms_norm: x must be a tensor; got SparseTensor: give tf\.sparse\.to_dense"):
        tf_backend.functions.rms_norm(keras.Input((8,), sparse=True))


def test_names(tf_backend, keras):
    """Operations have their functions' names, or the given one, like layers."""
    fo, x = tf_backend.functions, keras.Input((8,))
    model = keras.Model(x, fo.swiglu(fo.rms_norm(fo.add_rms_norm(x, x)[0], name="last")))
    assert {operation.name.rstrip("_0123456789") for operation in model.operations[1:]} == {
        "add_rms_norm",
        "last",
        "swiglu",
    }


def test_copies(tf_backend, keras, random):
    model, tensors = of_every_function(keras, tf_backend, random)
    for copy in (keras.Model.from_config(model.get_config()), keras.models.clone_model(model)):
        assert_same(copy(tensors), model(tensors))


IN_ANOTHER_PROCESS = """
import sys
import keras, numpy as np
folder = sys.argv[1]
try:
    keras.saving.load_model(folder + "/model.keras")
except TypeError as error:
    print(error)
import fusedops.tf
model = keras.saving.load_model(folder + "/model.keras")
tensors = np.load(folder + "/tensors.npz")
np.savez(folder + "/results.npz", *model([tensors[name] for name in tensors.files]))
assert "fusedops.tf.keras" not in sys.modules
"""


@pytest.mark.slow
def test_saved(tf_backend, keras, tmp_path, random):
    """A process that has imported fusedops.tf loads it; another one names the missing import."""
    model, tensors = of_every_function(keras, tf_backend, random)
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "tensors.npz", *(x.numpy() for x in tensors))
    done = interpreter("-c", IN_ANOTHER_PROCESS, tmp_path, env=environment(tf_backend.device), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Could not locate class '\w+'.*make sure they are all imported.*fusedops\.tf", done.stdout)
    found = np.load(tmp_path / "results.npz")
    expected = [np.asarray(x) for x in model(tensors)]
    # numpy's files store the bytes of a float8, not its name.
    assert_same([found[name].view(x.dtype) for name, x in zip(found.files, expected, strict=True)], expected)


def test_among_layers_that_are_trained(tf_backend, keras, fk, random):
    """With converted Keras layers, in a layer, and in a nested model; eagerly and under XLA."""
    fo = tf_backend.functions

    class Gate(keras.layers.Layer):
        def call(self, x):
            return fo.swiglu(x)

    def build():
        x = keras.Input((8,))
        y, s = fo.add_rms_norm(keras.layers.Dense(8, activation="gelu")(x), x)
        inner = keras.Model(x, [fo.gated_act(y, s), s])
        x = keras.Input((8,))
        y, s = inner(x)
        y = keras.layers.LayerNormalization()(fo.add(y, s))
        return keras.Model(x, fo.relu(keras.layers.Dense(3)(Gate()(keras.ops.concatenate([y, s], -1)))))

    x, y = random.normal(size=(12, 8)).astype("float32"), random.integers(0, 3, 12)
    for options in ({"run_eagerly": True}, {"jit_compile": True}):
        model = build()
        model.compile("sgd", fk.SparseCategoricalCrossentropy(from_logits=True), **options)
        before = model.predict(x, batch_size=5, verbose=0)
        converted(fk, model)
        np.testing.assert_allclose(model.predict(x, batch_size=5, verbose=0), before, rtol=1e-4, atol=1e-5)
        losses = model.fit(x, y, batch_size=5, epochs=3, verbose=0).history["loss"]
        assert losses[-1] < losses[0]


def test_the_example_in_the_guide(tf_backend, keras):
    (code,) = (block for block in blocks("python", (ROOT / "docs/layers.md").read_text()) if "keras.Model(" in block)
    names = {"keras": keras}
    exec(code, names)
    assert names["model"](tf_backend.tf.ones([2, 3, 256])).shape == (2, 3, 256)
