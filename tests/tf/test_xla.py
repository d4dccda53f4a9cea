"""TensorFlow: every operator under XLA, with the bits of eager code; and behaviour without XLA's library."""

from __future__ import annotations

import functools
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.bad_calls import CASES, as_function, graph_message
from tests.helpers.checks import SHAPE
from tests.helpers.numerics import assert_same_bits, special_values
from tests.helpers.running import environment, interpreter, python_path, run_program
from tests.helpers.tf_functions import (
    flat,
    function_and_tensors,
    gradient_of,
    jvp,
    signature_shape,
    steps,
    tensor_function,
    value_and_gradients,
    weighted,
)
from tests.specifications import SPECIFICATIONS, WITH_PARAMETERS


def compiled(tf, function, **options):
    return tf.function(function, jit_compile=True, **options)


def assert_same(tf, got, expected, label=""):
    for left, right in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        assert_same_bits(left.numpy(), right.numpy(), label)


def test_the_library_is_loaded(tf_backend):
    assert tf_backend.functions.xla.fault is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_of_eager(tf_backend, spec, dtype, random):
    tf = tf_backend.tf
    samples = (spec.sample((3, 5, 8), random), spec.sample(SHAPE, random), *spec.more_samples(random))
    compute, inputs = steps(tf_backend, spec, samples, dtype)
    found = compiled(tf, compute)(inputs)
    for sample, got, expected in zip(samples, found, compute(inputs), strict=True):
        assert_same(tf, got, expected, str(sample))


@pytest.mark.parametrize("spec", WITH_PARAMETERS, ids=str)
def test_bits_with_float32_parameters(tf_backend, spec, random):
    tf = tf_backend.tf
    sample = spec.sample((33, 65), random)
    inputs = tf_backend.tensors(sample, "bfloat16", spec)
    names = sample.tensors

    def function(*tensors):
        return tf_backend.call(spec.name, {**inputs, **dict(zip(names, tensors, strict=True))}, sample.options)

    tensors = [inputs[name] for name in names]
    compute = functools.partial(value_and_gradients, tf, spec, sample, function)
    assert_same(tf, compiled(tf, compute)(tensors), compute(tensors))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bits_of_special_values(tf_backend, spec, dtype, random):
    """NaN, infinities and subnormal numbers, which XLA itself flushes to zero on a CPU."""
    tf = tf_backend.tf
    samples = list(spec.special(special_values(dtype), random))
    compute, inputs = steps(tf_backend, spec, samples, dtype)
    found = compiled(tf, compute)(inputs)
    for sample, got, expected in zip(samples, found, compute(inputs), strict=True):
        assert_same(tf, got, expected, str(sample))


@pytest.mark.parametrize("known", ["batch-free", "rank"])
def test_unknown_sizes(tf_backend, spec, known, random):
    """One trace, for which XLA compiles each size, including zero."""
    tf = tf_backend.tf
    first = spec.sample((6, 5, 8), random)
    function, tensors = tensor_function(tf_backend, spec, first)
    signature = [tf.TensorSpec(signature_shape(tuple(x.shape), known), x.dtype) for x in tensors]
    compute = functools.partial(value_and_gradients, tf, spec, first, function)
    trained = compiled(tf, lambda *xs: compute(xs), input_signature=signature)
    for size in (6, 1, 0):
        _, tensors = tensor_function(tf_backend, spec, spec.sample((size, 5, 8), random))
        assert_same(tf, trained(*tensors), compute(tensors), str(size))


def test_inside_loops_and_branches(tf_backend, spec, random):
    tf = tf_backend.tf
    function, tensors = tensor_function(tf_backend, spec, spec.sample((4, 6), random))
    start = tf.nest.map_structure(tf.zeros_like, function(*tensors))

    def loop(*tensors):
        return tf.while_loop(lambda i, _: i < 3, lambda i, _: (i + 1, function(*tensors)), [tf.constant(0), start])[1]

    def branch(*tensors):
        return tf.cond(tf.size(tensors[-1]) < 100, lambda: function(*tensors), lambda: start)

    for way in (loop, branch):
        assert_same(tf, compiled(tf, way)(*tensors), function(*tensors), way.__name__)


def test_higher_derivatives(tf_backend, spec, random):
    """Double backward and forward mode consist of TensorFlow's operators, whose bits XLA changes slightly."""
    tf = tf_backend.tf
    function, tensors = function_and_tensors(tf_backend, spec, spec.sample((2, 3), random))
    tangents = [tf.constant(random.normal(size=x.shape)) for x in tensors]

    def first(tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            total = weighted(tf, function(*tensors))
        return tape.gradient(total, tensors)

    second = functools.partial(gradient_of, tf, first)
    forward = functools.partial(jvp, tf, flat(tf, function), tangents=tangents)

    for way in (second, forward):
        for got, expected in zip(
            tf.nest.flatten(compiled(tf, way)(tensors)), tf.nest.flatten(way(tensors)), strict=True
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("operator", "bad"), CASES)
def test_errors(tf_backend, operator, bad):
    """XLA's compilation raises the message of eager code if the trace knows no shape. A trace with known shapes raises
    it before XLA is reached: generic/test_errors.py."""
    tf = tf_backend.tf
    function, tensors = as_function(tf_backend, operator, bad)
    signature = [tf.TensorSpec(None, x.dtype) for x in tensors]
    with pytest.raises(tf_backend.errors, match=graph_message(operator, bad)):
        compiled(tf, function, input_signature=signature)(*tensors)


def test_a_kernel_that_fails(tf_cpu):
    """Only the kernel sees an invalid label."""
    tf, function = tf_cpu.tf, tf_cpu.public("cross_entropy")
    logits, labels = tf.zeros([2, 3]), tf.constant([0, 3])
    with pytest.raises(tf.errors.InvalidArgumentError) as eager:
        function(logits, labels)
    sentence = re.search(r"fusedops\.cross_entropy: labels must .*", eager.value.message)[0]
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(sentence[:60])):
        compiled(tf, function)(logits, labels)


def test_shapes_that_depend_on_values(tf_backend):
    """XLA would pass a buffer longer than the tensor: refused, with a message that states the remedy."""
    tf = tf_backend.tf

    def function(x, keep):
        return tf_backend.public("rms_norm")(tf.boolean_mask(x, keep))

    with pytest.raises(Exception, match=r"fusedops\.rms_norm: under XLA the shapes of inputs must not"):
        compiled(tf, function)(tf.ones([4, 8]), tf.constant([True, False, True, True]))


def test_numbers_and_lists_of_numbers(tf_backend):
    """All bits of a double are preserved to the kernel and back."""
    tf = tf_backend.tf
    x = tf_backend.tensor(np.linspace(-1, 1, 7), "float64")
    third = 1 / 3
    calls = [
        lambda x: tf_backend.public("scale")(x, third),
        lambda x: tf_backend.public("polynomial_activation")(x, (third, 1e-300, -third)),
        lambda x: tf_backend.public("rms_norm")(x, eps=third, weight_offset=-0.0),
    ]
    for call in calls:
        assert_same(tf, compiled(tf, call)(x), call(x))


CLUSTERED = """
import tensorflow as tf
import fusedops.tf as fo
tf.config.optimizer.set_jit("autoclustering")
x = tf.random.normal([64, 256])
def compute(x):
    for _ in range(4):
        x = fo.rms_norm(tf.tanh(x) + 1.0) * 2.0
    return x
def eager(x):
    with tf.device(x.device):
        return compute(x)
got = tf.function(compute)(x)
assert abs(got.numpy() - eager(x).numpy()).max() < 1e-5
"""


def test_kept_gradients_are_scaled_in_place(tf_cpu, random):
    tf, fo = tf_cpu.tf, tf_cpu.functions
    x, weight = (tf_cpu.tensor(random.normal(size=shape), "float32") for shape in ((4, 3), (5, 3)))
    labels = tf.constant([0, 4, 1, 1])

    def step(x, weight):
        with tf.GradientTape() as tape:
            tape.watch([x, weight])
            loss = 0.7 * fo.linear_cross_entropy(x, weight, labels)
        return tape.gradient(loss, [x, weight])

    in_program = compiled(tf, step)
    assert_same(tf, in_program(x, weight), step(x, weight))
    text = in_program.experimental_get_compiler_ir(x, weight)(stage="optimized_hlo")
    (call,) = (line for line in text.splitlines() if re.search("custom-call.*cross_entropy_backward", line))
    assert re.search(r"output_to_operand_aliasing=\{\{0\}: .*, \{1\}: ", call) and " copy(" not in text


@pytest.mark.slow
def test_auto_clustering(tf_backend, tmp_path):
    """TensorFlow chooses the operations that XLA compiles together, and includes fusedops's operators."""
    from google.protobuf import text_format  # installed with TensorFlow

    variables = environment(
        tf_backend.device,
        TF_XLA_FLAGS="--tf_xla_cpu_global_jit --tf_xla_min_cluster_size=2",
        TF_CPP_VMODULE="encapsulate_subgraphs_pass=1",  # writes the graphs
        TF_DUMP_GRAPH_PREFIX=str(tmp_path),
    )
    done = interpreter("-c", CLUSTERED, env=variables, is_new=True)
    assert done.returncode == 0, done.stderr
    clusters = []
    for file in tmp_path.glob("encapsulate_subgraphs_after*.pbtxt"):
        graph = text_format.Parse(file.read_text(), tf_backend.tf.compat.v1.GraphDef())
        functions = [f for f in graph.library.function if f.signature.name.startswith("cluster")]
        clusters += [sum(node.op == "FusedopsRmsNorm" for node in f.node_def) for f in functions]
    assert clusters == [4]


def test_the_second_gpu(tf_gpu, spec, dtype, random):
    """XLA compiles for its tensors' GPU, and the kernels run there."""
    tf = tf_gpu.tf
    if tf_gpu.gpus() < 2:
        pytest.skip("GPU: one only")
    sample = spec.sample((33, 130), random)
    found = []
    for backend in (tf_gpu, type(tf_gpu)("cuda", 1)):
        function, tensors = tensor_function(backend, spec, sample, dtype)
        compute = functools.partial(value_and_gradients, tf, spec, sample, function)
        with backend.place:
            found.append(compiled(tf, compute)(tensors))
        assert all(f"GPU:{backend.number}" in result.device for result in found[-1])
    assert_same(tf, *found)


def test_command_buffers(tf_gpu, tmp_path):
    """XLA captures every operator in CUDA graphs, forward and backward: none is launched separately."""
    flags = f"--xla_gpu_graph_min_graph_size=1 --xla_dump_hlo_as_text --xla_dump_to={tmp_path}"
    done = run_program("tf_command_buffers.py", device="cuda", XLA_FLAGS=flags)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [spec.name for spec in SPECIFICATIONS]
    thunks = [file.read_text() for file in tmp_path.glob("*thunk_sequence_after_thunk_passes.txt")]
    ours = [text for text in thunks if "kCustomCall" in text]
    assert len(ours) >= len(SPECIFICATIONS)
    assert not [text for text in ours if re.search(r"^\d+: kCustomCall", text, re.MULTILINE)]


ALONE = """
import sys
import tensorflow as tf
library = tf.load_op_library(sys.argv[1])
tf.load_op_library(sys.argv[2])
x = tf.reshape(tf.range(12.0), [3, 4])
compiled = tf.function(lambda x: library.fusedops_rms_norm(x=x, weight=[])[0], jit_compile=True)
assert (compiled(x).numpy() == library.fusedops_rms_norm(x=x, weight=[])[0].numpy()).all()
assert not any(name.split(".")[0] == "fusedops" for name in sys.modules)
"""


@pytest.mark.slow
def test_without_the_package(tf_cpu, tmp_path):
    """XLA's library finds operators loaded from any path."""
    operators, xla = (Path(tf_cpu.functions.library_path()).with_name(name) for name in ("_ops.so", "_xla.so"))
    done = interpreter("-c", ALONE, shutil.copy(operators, tmp_path), xla, cwd=tmp_path, env=environment("cpu"))
    assert done.returncode == 0, done.stderr


TWICE = """
import sys
import tensorflow as tf
{}
for path in sys.argv[1:]:
    tf.load_op_library(path)
import fusedops.tf as fo
x = tf.ones([2, 4])
for options in ({{}}, {{"jit_compile": True}}):
    assert tf.function(fo.rms_norm, **options)(x).shape == (2, 4)
"""


@pytest.mark.slow
def test_copies_of_the_libraries(tf_cpu, tmp_path):
    """A process may load copies of the libraries: the first kernels stay in use."""
    paths = [Path(tf_cpu.functions.library_path()).with_name(name) for name in ("_ops.so", "_xla.so")]
    copies = [shutil.copy(path, tmp_path) for path in paths]
    for first, sentence in (
        ("import fusedops.tf", None),
        ("", "ImportError: fusedops.tf must be imported before another copy of its library is loaded"),
    ):
        done = interpreter("-c", TWICE.format(first), *copies, env=environment("cpu"))
        if sentence:
            assert sentence in done.stderr
        else:
            assert done.returncode == 0, done.stderr


WITHOUT = """
import tensorflow as tf
import fusedops, fusedops.tf as fo
x = tf.ones([2, 4])
assert tf.function(fo.rms_norm)(x).shape == (2, 4)
fusedops.show_config()
print(fo.xla.fault)
tf.function(fo.rms_norm, jit_compile=True)(x)
"""


def missing(library):
    library.unlink()


def damaged(library):
    library.write_bytes(library.read_bytes()[:1000])


def foreign(library):
    """A file of the right size that the linker cannot load."""
    library.write_bytes(bytes(library.stat().st_size))


SENTENCES = {
    missing: r"fusedops\.tf's _xla\.so is not built: there is no .*_xla\.so; TensorFlow .*\. Run: make build-tf",
    damaged: r"fusedops\.tf's _xla\.so is damaged: .*_xla\.so must have \d+ bytes; it has 1000\. Run: make build-tf",
    foreign: r"fusedops\.tf's _xla\.so does not load: .*\. Run: make build-tf",
}


def copy_of_the_package(tf_cpu, tmp_path, fault):
    """A copy of the package with this fault in its library for XLA."""
    folder = tmp_path / "with a space" / "fusedops"
    shutil.copytree(Path(tf_cpu.functions.library_path()).parents[1], folder, ignore=shutil.ignore_patterns("_C*"))
    fault(folder / "tf" / "_xla.so")
    return folder


@pytest.mark.parametrize("fault", SENTENCES)
def test_why_the_library_is_not_loaded(tf_cpu, tmp_path, monkeypatch, fault):
    from fusedops import loading
    from fusedops.tf import xla

    folder = copy_of_the_package(tf_cpu, tmp_path, fault) / "tf"
    monkeypatch.setitem(loading._folders, "tf", folder)
    assert re.fullmatch(SENTENCES[fault], xla._load())


@pytest.mark.slow
def test_operators_work_without_the_library(tf_cpu, tmp_path):
    """They run; show_config explains why XLA cannot compile them, and XLA names the unknown operator."""
    folder = copy_of_the_package(tf_cpu, tmp_path, foreign)
    variables = environment("cpu", PYTHONPATH=python_path(folder.parent))
    done = interpreter("-c", WITHOUT, cwd=folder.parent, env=variables)
    assert len(re.findall(SENTENCES[foreign], done.stdout)) == 2, done.stdout + done.stderr
    assert re.search(r"InvalidArgumentError.*FusedopsRmsNorm", done.stderr, re.DOTALL)
