"""Run by tests/tf/test_added_operators.py: adds operators while the process runs, and writes the errors of each use,
nothing on success."""

import ctypes
import json
import shutil
import sys
import time
from pathlib import Path

import tensorflow as tf

import fusedops.tf as fo
from fusedops.gradients.registry import gradient
from fusedops.tf import library
from fusedops.tf.operators import OPERATORS as ops
from tests.helpers.checking import check, failed, names_added_in_threads, refused
from tests.helpers.tf_functions import two_derivatives

OTHERS, FOLDER = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2])  # a library of operators; for results and a SavedModel


X = tf.constant([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
S = tf.constant([2.0, 0.5, -1.0])


@gradient("triple_backward")
def _triple_backward(f, c, gdx):
    return {"dy": f.triple_backward(gdx, factor=c.factor)}


@gradient("weigh_backward", saves=("s", "x", "dy"))
def _weigh_backward(f, c, gds, gdx):
    """TensorFlow passes zeros for absent gradients."""
    return {
        "dy": lambda: f.weigh(f.weigh(None, gdx, c.s), c.x, gds),
        "x": lambda: f.weigh(None, c.dy, gds),
        "s": lambda: f.weigh_backward(c.s, c.dy, gdx)[0],
    }


def like_triple(name, attribute="factor"):
    def show():
        return OTHERS.fusedops_like_triple(name.encode(), attribute.encode())

    OTHERS.fusedops_like_triple.restype = ctypes.c_void_p
    return show


def close(found, expected):
    tf.debugging.assert_near(found, expected, rtol=1e-5)


@check
def xla_before():
    """XLA must find operators that are added after its first compilation."""
    compiled = tf.function(lambda x: fo.relu(x), jit_compile=True)
    close(compiled(X), tf.nn.relu(X))


@check
def adding():
    """Several threads call it while one adds operators."""
    assert not hasattr(ops, "triple")
    library.added()  # not there yet
    names = names_added_in_threads(library, OTHERS.fusedops_library)
    assert names == ["triple", "triple_backward", "weigh", "weigh_backward", "frozen"], names
    assert not hasattr(fo, "triple")


@check
def eager():
    for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
        y = ops.triple(tf.cast(X, dtype))
        assert y.dtype == dtype
        close(tf.cast(y, tf.float32), 3 * X)
    close(ops.triple(X.numpy(), factor=0.1), 0.1 * X)


@check
def errors():
    for call, kind, sentence in (
        (lambda: ops.triple(tf.constant([1, 2])), tf.errors.InvalidArgumentError, "fusedops.triple: x must be float64"),
        (lambda: ops.triple("text"), TypeError, "fusedops.triple: x must be a tensor; got str"),
        (lambda: ops.triple(X, factor="3"), TypeError, "fusedops.triple: factor must be a number; got '3'"),
    ):
        try:
            call()
        except kind as error:
            assert sentence in str(error), error
        else:
            raise AssertionError(sentence)


@check
def tape():
    first, second = two_derivatives(tf, lambda x: tf.sin(ops.triple(x)), X)
    close(first, 3 * tf.cos(3 * X))
    close(second, -9 * tf.sin(3 * X))


@check
def forward_mode():
    with tf.autodiff.ForwardAccumulator(X, tf.ones_like(X)) as accumulator:
        y = ops.triple(tf.sin(X))
    close(accumulator.jvp(y), 3 * tf.cos(X))


@check
def function():
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def f(x):
        y = ops.triple(x)
        return y, tf.gradients(tf.sin(y), x)[0]

    for x in (X, S):
        y, dx = f(x)
        close(y, 3 * x)
        close(dx, 3 * tf.cos(3 * x))


@check
def xla():
    @tf.function(jit_compile=True)
    def f(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.sin(ops.triple(x)))
        return tape.gradient(y, x)

    close(f(X), 3 * tf.cos(3 * X))
    assert 'custom_call_target="fusedops"' in f.experimental_get_compiler_ir(X)()


@check
def auto_clustering():
    @tf.function
    def f(x):
        return tf.sin(ops.triple(tf.cos(x)))

    tf.config.optimizer.set_jit("autoclustering")
    try:
        close(f(X), tf.sin(3 * tf.cos(X)))
    finally:
        tf.config.optimizer.set_jit(False)


@check
def vectorized_map():
    @tf.function
    def f(x):
        return tf.vectorized_map(ops.triple, x)

    close(f(X), 3 * X)
    assert not any("While" in node.type for node in f.get_concrete_function(X).graph.get_operations())
    with tf.GradientTape() as tape:
        tape.watch(S)
        y = ops.triple(tf.sin(S))
    close(tape.jacobian(y, S), tf.linalg.diag(3 * tf.cos(S)))


@check
def saved_model():
    model = tf.Module()
    model.f = tf.function(lambda x: ops.triple(x, factor=5.0), input_signature=[tf.TensorSpec([None, 3])])
    tf.saved_model.save(model, str(FOLDER / "model"))
    close(tf.saved_model.load(str(FOLDER / "model")).f(X), 5 * X)


@check
def while_tracing():
    """An operator is added inside a function while it is traced, and compiled."""

    @tf.function(jit_compile=True)
    def f(x, s):
        library.add(OTHERS.fusedops_quadruple)
        with tf.GradientTape() as tape:
            tape.watch((x, s))
            y = ops.weigh(None, ops.quadruple(x), s)
        return y, *tape.gradient(y, (x, s))

    for _ in range(2):
        y, dx, ds = f(X, S)
        close(y, 4 * X * S)
        close(dx, 4 * tf.ones_like(X) * S)
        close(ds, 4 * tf.reduce_sum(X, 0))


@check
def no_gradient():
    """An operator for which no gradient is declared."""
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = ops.frozen(X)
    close(y, 3 * X)
    try:
        tape.gradient(y, X)
    except LookupError as error:
        assert str(error).startswith("fusedops.frozen: there is no gradient"), error
    else:
        raise AssertionError("no error")


@check
def any_names():
    """Names that TensorFlow renames, or that a function's text uses."""
    library.add(OTHERS.fusedops_names)
    for x in (X, tf.constant(X.numpy(), tf.float16)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ops.names(x, x, map=0.5)
        close(tf.cast(y, tf.float32), 0.5 * X)
        close(tf.cast(tape.gradient(y, x), tf.float32), tf.fill(X.shape, 0.5))
    close(tf.function(lambda x: ops.names(x, x), jit_compile=True)(X), 2 * X)
    with refused(RuntimeError, "fusedops.taken: in TensorFlow, no attribute can be named ctx"):
        library.add(like_triple("taken", "ctx"))
    assert not hasattr(ops, "taken")
    library.add(like_triple("behind"))
    close(ops.behind(X), 3 * X)


@check
def wide():
    """The maximum number of inputs, outputs and attributes."""
    library.add(OTHERS.fusedops_wide)
    xs = [i * X for i in range(24)]

    def f(*xs):
        return ops.wide(*xs, need_y3=False)

    for call in (f, tf.function(f), tf.function(f, jit_compile=True)):
        ys = call(*xs)
        assert ys[3].shape == (0,)
        for i in {*range(12)} - {3}:
            close(ys[i], (2 * i + 12) * X)
    ys = tf.vectorized_map(lambda xs: ops.wide(*xs), [tf.stack([x, x + 1]) for x in xs])
    close(ys[5][1], 22 * X + 2)


@check
def beside_a_copy():
    """With a copy of the library, in which the same operator is added first."""
    copy = str(shutil.copy(library.LIBRARY, FOLDER / "copy.so"))
    tf.load_op_library(copy)
    other, twin = ctypes.CDLL(copy), like_triple("twin")
    assert other.fusedops_add_operators(ctypes.c_void_p(twin())) == 0
    assert other.fusedops_tf_register_new() == 0
    library.add(twin)
    close(ops.twin(X), 3 * X)
    close(tf.function(ops.twin, jit_compile=True)(X), 3 * X)


@check
def scalars_of_any_shape():
    for s in (S, tf.constant(2.0), S[None], tf.constant([[2.0], [3.0]])):
        with tf.GradientTape() as tape:
            tape.watch(s)
            y = ops.weigh(X, X, s)
        close(y, X * s + X)
        assert tape.gradient(y, s).shape == s.shape
    close(ops.weigh(None, X, 0.1), 0.1 * X)
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = ops.weigh(None, X, 2)
    close(tape.gradient(y, X), tf.fill(X.shape, 2.0))
    for mapped in (X, X[:, :1]):
        close(tf.vectorized_map(lambda x: ops.weigh(None, x, S), mapped * tf.ones_like(X)), mapped * S)
        close(tf.vectorized_map(lambda s: ops.weigh(None, X, s), mapped), X * mapped[:, None])


@check
def second_order_of_several():
    s = tf.constant([2.0, 1.0, -3.0])
    with tf.GradientTape() as outer:
        outer.watch(s)
        with tf.GradientTape() as inner:
            inner.watch(X)
            y = tf.reduce_sum(tf.sin(ops.weigh(None, X, s)))
        dx = inner.gradient(y, X)
    close(outer.gradient(dx, s), tf.reduce_sum(tf.cos(X * s) - X * s * tf.sin(X * s), 0))
    with tf.autodiff.ForwardAccumulator((X, s), (X, s)) as accumulator:
        y = ops.weigh(X, X, s)
    close(accumulator.jvp(y), 2 * X * s + X)


@check
def speed():
    def best(call):
        times = []
        for _ in range(40):
            start = time.perf_counter()
            for _ in range(100):
                call(X)
            times.append(time.perf_counter() - start)
        return min(times) / 100

    own, built_in = (min(best(call) for _ in range(3)) for call in (library.RAW["triple"], library.RAW["relu"]))
    function, of_library = (best(call) for call in (ops.triple, ops.relu))
    print(f"raw: {own * 1e6:.2f} us and {built_in * 1e6:.2f} us; {function * 1e6:.2f} us and {of_library * 1e6:.2f} us")
    assert own < 1.5 * built_in
    assert function < 1.5 * of_library


if __name__ == "__main__":
    with tf.device("/CPU:0"):
        (FOLDER / "raised.json").write_text(json.dumps(failed()))
