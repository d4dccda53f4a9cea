"""Run by tests/custom/test_operators.py: loads the guide's operator and another one into TensorFlow, and prints the
errors of each use. Arguments: a folder for sources, the device."""

import contextlib

import tensorflow as tf
from custom_operators import DEVICE, FOLDER, SCALED, SQUARE, check, check_module, declare_of_guide, of_scaled, run

import fusedops.tf as fo
from tests.helpers.checking import refused
from tests.helpers.tf_functions import two_derivatives

declare_of_guide()
guide = fo.load("guide", SQUARE)
mine = fo.load("mine", SCALED, gradients={"scaled": of_scaled})
PLACE = tf.device("/CPU:0" if DEVICE == "cpu" else "/GPU:0")


def random(*shape, dtype=tf.float64, seed=0):
    return tf.cast(tf.random.stateless_normal(shape, (seed, sum(shape)), dtype=tf.float64), dtype)


def close(found, expected):
    tf.debugging.assert_near(found, expected, rtol=1e-5)


@check
def eager():
    for dtype in (tf.float64, tf.float32, tf.float16, tf.bfloat16):
        x = random(3, 5, dtype=dtype)
        y, wide = guide.square(x), tf.cast(x, tf.float64)
        assert y.dtype == dtype
        tf.debugging.assert_equal(y, tf.cast(wide * wide, dtype))


@check
def tape():
    x = random(3, 5)
    first, second = two_derivatives(tf, lambda x: tf.sin(guide.square(x)), x)
    close(first, 2 * x * tf.cos(x * x))
    close(second, 2 * tf.cos(x * x) - 4 * x * x * tf.sin(x * x))
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
        y = guide.square(x)
    close(accumulator.jvp(y), 2 * x)


def loss(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = guide.square(tf.sin(x), name="mine")
    return y, tape.gradient(y, x)


@check
def graphs():
    for options in ({}, {"jit_compile": True}):
        function = tf.function(loss, input_signature=[tf.TensorSpec([None, 5], tf.float64)], **options)
        for size in (3, 4):
            x = random(size, 5)
            y, dx = function(x)
            close(y, tf.sin(x) ** 2)
            close(dx, 2 * tf.sin(x) * tf.cos(x))
        graph = function.get_concrete_function().graph
        assert any(node.name == "mine/FusedopsSquare" for node in graph.get_operations())


@check
def keras_models():
    """Functional models call the operators; a model's config names the library, which must be loaded first."""
    if DEVICE == "cuda":
        return  # scaled has no kernel
    import keras

    x, bias = random(3, 5, dtype=tf.float32), random(3, 5, dtype=tf.float32, seed=1)
    symbol, other = keras.Input((5,)), keras.Input((5,))
    y = mine.scaled(guide.square(symbol), other, factor=0.5, name="half")
    z = mine.scaled(guide.square(y))
    assert isinstance(y, keras.KerasTensor) and y.shape == (None, 5) and y.dtype == "float32"
    model = keras.Model([symbol, other], [y, z])
    expected = mine.scaled(guide.square(x), bias, factor=0.5)
    for each in (model, keras.models.model_from_json(model.to_json()), keras.models.clone_model(model)):
        assert any(operation.name == "half" for operation in each.operations)
        for found, wanted in zip(each([x, bias]), (expected, mine.scaled(guide.square(expected))), strict=True):
            tf.debugging.assert_equal(found, wanted)
    tf.debugging.assert_equal(keras.Model(symbol, mine.scaled(symbol, bias))(x), mine.scaled(x, bias))
    config = model.to_json().replace('"library": "mine"', '"library": "nowhere"')
    for call, sentence in (
        (lambda: keras.models.model_from_json(config), "call fusedops.tf.load('nowhere', ...) before"),
        (lambda: mine.scaled(symbol, factor="half"), "fusedops.scaled: factor must be a number"),
        (lambda: mine.scaled(symbol, keras.Input((4,))), "fusedops.scaled: bias must have x's shape"),
    ):
        try:
            call()
        except (TypeError, ValueError) as error:
            assert sentence in str(error), error
        else:
            raise AssertionError(sentence)


@check
def vectorized():
    x = random(4, 5)
    close(tf.vectorized_map(guide.square, x), x * x)


@check
def derivative_as_a_formula():
    if DEVICE == "cuda":
        return  # it has no kernel
    x, bias = random(3, 5), random(3, 5, seed=1)
    close(mine.scaled(x), 2 * x)
    with tf.GradientTape() as outer:
        outer.watch([x, bias])
        with tf.GradientTape() as inner:
            inner.watch([x, bias])
            y = tf.sin(mine.scaled(x, bias, factor=0.5))
        dx, dbias = inner.gradient(y, [x, bias])
    close(dx, 0.5 * tf.cos(0.5 * x + bias))
    close(dbias, tf.cos(0.5 * x + bias))
    close(outer.gradient(dx, x), -0.25 * tf.sin(0.5 * x + bias))


@check
def module():
    check_module(fo, guide, mine, "(x, bias=None, /, *, factor=2.0, name=None)")


@check
def again():
    """The same sources while a function is traced, and other sources."""
    assert fo.load("guide", SQUARE) is guide
    x = random(3, 5)
    close(tf.function(lambda x: fo.load("guide", SQUARE).square(x))(x), x * x)
    other = FOLDER / "scaled.cpp"
    other.write_text(SCALED.read_text() + "// changed\n")
    with refused(ValueError, "fusedops: an operator is already named like scaled"):
        fo.load("other", other)


with PLACE if DEVICE == "cuda" else contextlib.nullcontext():
    run()
