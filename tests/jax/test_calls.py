"""JAX: calls of every operator, eager and compiled, their arguments and their errors."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.generic.test_parity import assert_agreement
from tests.helpers.numerics import assert_same_bits
from tests.helpers.running import python
from tests.specifications import BUILT_IN


@pytest.mark.parametrize("spec", BUILT_IN, ids=str)
def test_bits_of_every_operator(jax_backend, spec, random):
    """Those of PyTorch, forward and backward, and those of a compiled call."""
    from tests.conftest import require

    torch = require("torch", jax_backend.device)
    sample = spec.sample((3, 8), random)
    assert_agreement((torch, jax_backend), spec, sample, lambda backend: backend.tensors(sample, "float32"))
    inputs = jax_backend.tensors(sample, "float32")
    tensors = {name: inputs[name] for name in sample.tensors}

    def call(tensors):
        return jax_backend.call(spec.name, {**inputs, **tensors}, sample.options)

    for got, expected in zip(jax_backend.traced(call)(tensors), call(tensors), strict=True):
        assert_same_bits(jax_backend.to_numpy(got), jax_backend.to_numpy(expected))


def test_every_kind_of_seed(jax_cpu):
    """A pair of integers, int64 [2] and the words of a key, as an array of words or as a typed key."""
    jax, fo = jax_cpu.jax, jax_cpu.functions
    x = jax.numpy.ones(1000)
    pair = fo.dropout(x, 0.5, (5, -7))
    assert_same_bits(np.asarray(fo.dropout(x, 0.5, jax.numpy.array([5, -7]))), np.asarray(pair))
    key = jax.random.key(3)
    words = fo.dropout(x, 0.5, jax.random.key_data(key))
    assert_same_bits(np.asarray(jax.jit(fo.dropout, static_argnums=1)(x, 0.5, key)), np.asarray(words))
    assert 400 < np.sum(np.asarray(words) == 0) < 600 and np.any(np.asarray(words) != np.asarray(pair))
    kinds = "a key of jax.random, an int64 tensor of shape [2] or a pair of integers"
    for function in (fo.dropout, lambda x, rate: fo.attention(*[x[:8].reshape(2, 2, 2)] * 3, dropout=rate)):
        with pytest.raises(TypeError, match=r"fusedops\.\w+: " + re.escape(f"seed must be {kinds}; got None")):
            function(x, 0.5)
    with pytest.raises(ValueError, match=r"fusedops\.dropout: seed must be one key; got keys of shape \[2\]"):
        fo.dropout(x, 0.5, jax.random.split(key, 2))


WITHOUT_X64 = """
import warnings
import jax, jax.numpy as jnp, numpy as np
import fusedops.jax as fo
warnings.simplefilter("error")
jax.config.update("jax_default_device", jax.devices("cpu")[0])  # a GPU refuses nothing
x = jnp.ones(64)
pair = fo.dropout(x, 0.5, (5, -7))
for seed in (jnp.array([5, -7]), np.array([5, -7])):
    assert (fo.dropout(x, 0.5, seed) == pair).all()
for seed in ((2**40 + 1, 3), (1, 2**40 + 3), (-1, 2**63 - 1), (-(2**31) - 1, 0)):
    assert (fo.dropout(x, 0.5, np.array(seed)) == fo.dropout(x, 0.5, seed)).all()

def refused(sentence, function, *given, **options):
    try:
        jax.block_until_ready(function(*given, **options))
    except Exception as error:
        assert sentence in str(error), error
    else:
        raise AssertionError(sentence)

q, k = jnp.arange(24.0).reshape(2, 3, 2, 2), jnp.ones((2, 5, 2, 2)).at[:, 2:].set(2)
for offset, integers in ((1, [1, 1]), (0, [0, 0])):
    given = (fo.attention(q, k, k, causal=True, query_offset=x) for x in (offset, np.array(integers)))
    np.testing.assert_array_equal(*given)
limits = "must be in [0, 5], the number of keys; got "
for place in (2**40, -(2**40), 2**32, 6):
    refused(f"query_offset {limits}{place} for sequence 0", fo.attention, q, k, k, causal=True, query_offset=place)
    refused(f"lengths {limits}{place} for sequence 1", fo.attention, q, k, k, lengths=np.array([1, place]))
for label in (2**32 + 1, -(2**32)):
    sentence = f"labels must be in [0, 3) or ignore_index, -100; got {label} in row 1"
    refused(sentence, fo.cross_entropy, jnp.eye(3), np.array([0, label, 2]))
logits = jnp.array([[2.0, 1.0], [0.0, 0.0]])
loss = lambda logits: fo.cross_entropy(logits, np.array([0, -100]))
print(float(loss(logits)), jax.jit(jax.grad(loss))(logits).dtype, jax.config.jax_enable_x64)
"""


def test_without_int64(jax_cpu):
    done = python(WITHOUT_X64, is_new=True)
    assert done.returncode == 0, done.stderr
    loss, dtype, x64 = done.stdout.split()
    assert abs(float(loss) - np.log1p(np.exp(-1))) < 1e-6 and (dtype, x64) == ("float32", "False")


def test_a_bad_call_is_refused_while_it_is_traced(jax_cpu):
    """With the sentence of an eager call, also where only a transform traces it."""
    jax, fo = jax_cpu.jax, jax_cpu.functions
    x, weight = jax.numpy.ones((2, 3)), jax.numpy.ones(4)
    sentence = re.escape("fusedops.rms_norm: weight must have shape [3], the last dimension of x; got [4]")
    for transform in (jax.jit, jax.vmap, lambda f: jax.grad(lambda *a: f(*a).sum()), jax.checkpoint):
        given = (x[None], jax.numpy.ones((1, 4))) if transform is jax.vmap else (x, weight)
        with pytest.raises(ValueError, match=sentence):
            transform(fo.rms_norm)(*given)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_numbers_that_are_traced(jax_cpu, dtype):
    """A Python number that jax.jit or jax.grad traces has a weak type, of 64 bits here; it acts as in an eager call."""
    jax, fo, np_ = jax_cpu.jax, jax_cpu.functions, jax_cpu.jax.numpy
    x = jax_cpu.tensor(np.arange(8.0).reshape(2, 4) / 8, dtype)
    product = fo.elementwise("a * x")
    for function in (fo.scale, lambda x, a: product(a, x), lambda x, a: fo.axpby(a, x, x)):
        for number in (3, 0.5):
            found, expected = jax.jit(function)(x, number), function(x, number)
            assert found.dtype == expected.dtype == x.dtype
            np.testing.assert_array_equal(found, expected)
        slope = jax.grad(lambda a, f=function: f(x, a).astype("float32").sum())(0.5)
        assert slope == x.astype("float32").sum() == 3.5
    weight = np_.full(4, 0.5)
    assert weight.weak_type and fo.rms_norm(x, weight).dtype == x.dtype
    with pytest.raises(ValueError, match="factor must have x's dtype"):
        jax.jit(fo.scale)(x, 2j)


def test_a_key_is_refused_as_a_tensor(jax_cpu):
    """Its dtype is none of NumPy."""
    with pytest.raises(ValueError, match=r"fusedops\.relu: x must be .*; got an unsupported dtype"):
        jax_cpu.functions.relu(jax_cpu.jax.random.key(0))


def test_calls_without_jit(jax_cpu):
    """A user may turn `jax.jit` off, and ask for the operator whose result has a NaN."""
    jax, fo = jax_cpu.jax, jax_cpu.functions
    x = jax.numpy.ones((2, 4))
    second = jax.hessian(lambda x: fo.rms_norm(x).sum())
    expected = second(x)
    with jax.disable_jit():
        assert_same_bits(np.asarray(second(x)), np.asarray(expected))
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="encountered in fusedops_rms_norm"):
        jax.jit(lambda x: fo.rms_norm(x) + 1)(x * np.inf)


def test_kept_gradients_are_scaled_in_place(jax_cpu, random):
    """A program scales them in the memory of the forward's results. It copies them if they are read later, as by a
    second backward, or are its arguments."""
    jax, fo = jax_cpu.jax, jax_cpu.functions
    x, weight = (jax_cpu.tensor(random.normal(size=shape), "float32") for shape in ((4, 3), (5, 3)))

    def loss(x, weight):
        return fo.linear_cross_entropy(x, weight, np.array([0, 4, 1, 1]))

    for factor in (1.0, 0.7):
        step = jax.jit(jax.grad(lambda *given, factor=factor: factor * loss(*given), (0, 1)))
        text = step.lower(x, weight).compile().as_text()
        (call,) = (line for line in text.splitlines() if re.search("custom-call.*cross_entropy_backward", line))
        assert re.search(r"output_to_operand_aliasing=\{\{0\}: .*, \{1\}: ", call) and " copy(" not in text

    upstream = [jax_cpu.tensor(np.array(each), "float32") for each in (0.7, 1.0, -2.0)]
    expected = [jax.grad(lambda *given, dy=dy: dy * loss(*given), (0, 1))(x, weight) for dy in upstream]
    _, pullback = jax.vjp(loss, x, weight)
    twice = jax.jit(lambda x, weight: [*map(jax.vjp(loss, x, weight)[1], upstream)])
    of_arguments = [jax.jit(lambda f, dy: f(dy))(pullback, dy) for dy in upstream]
    for found in ([*map(pullback, upstream)], twice(x, weight), of_arguments):
        for got, exact in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert_same_bits(np.asarray(got), np.asarray(exact))


def test_exported_programs(jax_backend, random):
    """A program for both platforms, saved with the gradient's calls, gives the bits of a call."""
    jax, fo = jax_backend.jax, jax_backend.functions
    export, given = jax.export, [jax_backend.tensor(random.normal(size=s), "float32") for s in ((4, 3), (5, 3))]
    labels = np.array([0, 4, 1, 1])
    step = jax.jit(jax.value_and_grad(lambda x, w: fo.linear_cross_entropy(fo.rms_norm(x), w, labels), (0, 1)))
    allowed = [export.DisabledSafetyCheck.custom_call("fusedops")]
    saved = export.export(step, platforms=["cpu", "cuda"], disabled_checks=allowed)(*given).serialize()
    found, expected = jax.tree.leaves(export.deserialize(saved).call(*given)), jax.tree.leaves(step(*given))
    for got, exact in zip(found, expected, strict=True):
        assert_same_bits(jax_backend.to_numpy(got), jax_backend.to_numpy(exact))


def test_a_program_with_too_little_workspace_is_refused(jax_backend, random, monkeypatch):
    """It may have been exported by a version whose kernels needed less."""
    from fusedops.jax import primitives

    jax, fo = jax_backend.jax, jax_backend.functions
    x, weight = (jax_backend.tensor(random.normal(size=shape), "float32") for shape in ((4, 3), (5, 3)))
    loss = jax.jit(lambda x, weight: fo.linear_cross_entropy(x, weight, np.array([0, 4, 1, 1])))
    monkeypatch.setattr(primitives, "_workspace", lambda *_: 0)
    allowed = [jax.export.DisabledSafetyCheck.custom_call("fusedops")]
    program = jax.export.export(loss, platforms=["cpu", "cuda"], disabled_checks=allowed)(x, weight)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"must have \d+ bytes in this version.*; got 0"):
        np.asarray(program.call(x, weight))


def test_symbolic_shapes_are_refused(jax_cpu):
    jax, fo = jax_cpu.jax, jax_cpu.functions
    (rows,) = jax.export.symbolic_shape("rows")
    with pytest.raises(ValueError, match=r"fusedops\.relu: shapes must be known; got \(rows, 3\)"):
        jax.export.export(jax.jit(fo.relu))(jax.ShapeDtypeStruct((rows, 3), "float32"))


def test_an_older_interface_of_xla_is_an_error_at_import(jax_cpu, tmp_path):
    """XLA itself would only say at the first call that there is no handler."""
    header = tmp_path / "xla/ffi/api/c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 0\n")
    code = f"import jax; jax.ffi.include_dir = lambda: {str(tmp_path)!r}\nimport fusedops.jax"
    done = python(code, is_new=True)
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(r"ImportError: fusedops\.jax was built for version 0\.\d+ .* 0\.0\. Run: make build-jax", last)


def test_a_description_is_that_of_jax(jax_cpu):
    for name in jax_cpu.functions.__all__:
        text = getattr(jax_cpu.functions, name).__doc__ or ""
        assert not re.search(r"^(PyTorch|TensorFlow):$|\((PyTorch|TensorFlow|JAX)\)", text, re.M), name
    raised = jax_cpu.functions.rms_norm.__doc__.partition("Raises:\n    ")[2].partition(":")[0]
    assert raised == "ValueError"
