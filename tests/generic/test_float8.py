"""Results in 8 bits: rounding, scales, the same bits in eager, compiled and traced calls, refused calls."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

from tests.helpers import float8
from tests.helpers.float8 import (
    FORMATS,
    NAN,
    SCALINGS,
    arrays,
    assert_quantized,
    bytes_of,
    codes,
    exact_range,
    float8_call,
    numbers,
    reference_inputs,
    scales_of,
    spread,
    unquantized_name,
)
from tests.helpers.numerics import assert_accurate, assert_same_bits, compute_dtype, numpy_dtype, special_values
from tests.helpers.specification import Sample
from tests.specifications import SPECIFICATIONS

WIDE = [spec for spec in SPECIFICATIONS if f"{spec.name}_float8" in float8.SIGNATURES]
WAYS = {"torch": ("eager", "compiled"), "tf": ("eager", "graph", "xla"), "jax": ("eager", "compiled")}
# Less than a block, blocks and a remainder, several blocks that are packs of every dtype, one element, many short rows.
SHAPES = ((3, 5, 37), (2, 300), (4, 1024), (1,), (700, 3))

of_wide = pytest.mark.parametrize("wide", WIDE, ids=str)
formats = pytest.mark.parametrize("kind", FORMATS)


def test_every_operator_with_8_bit_results_is_tested(torch_cpu):
    from fusedops.torch.library import TABLE

    found = {name for name, x in TABLE.items() if not x.differentiable and not x.has_effects_or_lists}
    assert found == float8.SIGNATURES.keys()
    assert len(WIDE) == len(found)


def quantized(backend, x, dtype, **options):
    """Quantizes x without another operator before."""
    y, scale = float8_call(backend, BIAS_ACT, Sample({"x": x}, {"activation": "identity"}), dtype, **options)
    return backend.to_numpy(y), backend.to_numpy(scale)


BIAS_ACT = next(spec for spec in WIDE if spec.name == "bias_act")


def around(kind, dtype):
    """Every 8-bit number, the midpoint of each two neighbours, their neighbours in dtype, and special values."""
    known = numbers(kind)
    exact = np.concatenate([known, (known[1:] + known[:-1]) / 2, [known[-1] * 1.0625, known[-1] * 2, 1e-30]])
    with np.errstate(over="ignore"):
        exact = exact.astype(numpy_dtype(dtype))
    steps = [np.nextafter(exact, exact.dtype.type(way)) for way in (np.inf, 0)]
    positive = np.concatenate([x.astype(np.float64) for x in (exact, *steps)])
    return np.concatenate([positive, -positive, special_values(dtype)])


@formats
@pytest.mark.parametrize("length", [1000, 1024])
def test_rounding_is_to_nearest_even(any_backend, dtype, kind, length):
    """Rounds once to nearest even near every boundary, in a misaligned row and in a row of whole packs."""
    values = around(kind, dtype)
    values = np.resize(values, -(-len(values) // length) * length).reshape(-1, length)
    one = np.ones((), compute_dtype(dtype))
    y, scale = quantized(any_backend, values, dtype, scale=one, scaling="tensor", kind=kind)
    assert y.dtype == np.dtype(getattr(ml_dtypes, kind))
    assert scale == 1
    np.testing.assert_array_equal(bytes_of(y), codes(values, kind))


@formats
def test_a_double_is_rounded_once(any_backend, kind):
    """Values next to a midpoint that float32 would round to the midpoint."""
    known = numbers(kind)
    middles = (known[1:] + known[:-1]) / 2
    values = np.concatenate([middles * (1 + 1e-12), middles * (1 - 1e-12), -middles * (1 + 1e-15)])
    y, _ = quantized(any_backend, values, "float64", scale=np.ones((1,)), scaling="tensor", kind=kind)
    np.testing.assert_array_equal(bytes_of(y), codes(values, kind))


def test_every_16_bit_pattern(any_backend):
    for dtype in ("float16", "bfloat16"):
        with np.errstate(invalid="ignore"):
            values = np.arange(2**16, dtype=np.uint16).view(numpy_dtype(dtype)).astype(np.float64)
        for kind in FORMATS:
            one = np.ones((), "float32")
            y, _ = quantized(any_backend, values, dtype, scale=one, scaling="tensor", kind=kind)
            np.testing.assert_array_equal(bytes_of(y), codes(values, kind))


@formats
@pytest.mark.parametrize("scaling", SCALINGS)
def test_scales(any_backend, dtype, kind, scaling, random):
    """The scale is exactly the largest value over the largest 8-bit number; quotients are exact to the last bit."""
    wide = compute_dtype(dtype)
    for shape in (*SHAPES, (3, 0), (0, 5), (0, 0), (2, 20_000)):
        x = random.normal(size=shape) * 10.0 ** random.integers(-3, 4, size=shape)
        x = x.astype(numpy_dtype(dtype)).astype(np.float64)
        y, scales = quantized(any_backend, x, dtype, scaling=scaling, kind=kind)
        expected = scales_of(x, scaling, kind, wide)
        assert_same_bits(scales, expected, f"{shape}")
        np.testing.assert_array_equal(bytes_of(y), codes(quotients(x, spread(expected, shape, scaling)), kind))


def quotients(values, scales):
    """Quotients precise enough that none is rounded to the midpoint of two 8-bit numbers, unless it is one."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        return values.astype(np.longdouble) / scales.astype(np.longdouble)


def near_middles(kind, scale, dtype):
    """Values of dtype whose quotients are at, or as near as possible to, the midpoints of two 8-bit numbers."""
    known = numbers(kind)
    middles = np.concatenate([(known[1:] + known[:-1]) / 2, known])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        exact = (middles * np.longdouble(scale)).astype(numpy_dtype(dtype))
        steps = [np.nextafter(exact, exact.dtype.type(way)) for way in (np.inf, 0)]
    return np.concatenate([x.astype(np.float64) for x in (exact, *steps)])


@formats
@pytest.mark.parametrize("scaling", SCALINGS)
def test_quotients_are_rounded_once(any_backend, dtype, kind, scaling, random):
    """Given scales of any kind: zero, subnormal, negative, beyond the inverse of every number, not finite."""
    wide = np.dtype(compute_dtype(dtype))
    info = np.finfo(wide)
    special = [0.1, 1e-39, 0.0, -0.3, 1.0, 0.5, 3.0, info.max, info.tiny, info.smallest_subnormal, np.inf, np.nan]
    scales = np.concatenate([special, random.uniform(1, 2, size=20), 10.0 ** random.uniform(-30, 30, size=20)])
    scales = scales.astype(wide)
    rows = [near_middles(kind, scale, dtype) for scale in scales]
    values = np.stack([np.concatenate([row, -row, [0.0, -0.0, np.inf, -np.inf, np.nan]]) for row in rows])
    values = values[:, random.permutation(values.shape[1])][:, :256]
    for x, given in [(values, scales[:, None])] if scaling != "tensor" else zip(values, scales, strict=True):
        shape = (len(scales), 2) if scaling == "block" else np.shape(given)
        scale = np.ascontiguousarray(np.broadcast_to(given, shape))
        y, _ = quantized(any_backend, x, dtype, scale=scale, scaling=scaling, kind=kind)
        of_each = spread(scale, x.shape, scaling)
        np.testing.assert_array_equal(bytes_of(y), codes(quotients(x, of_each), kind))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_special_scales(any_backend, scaling):
    """Rows of zeros have a scale; NaN stays in its place; an infinity makes the scale 1; the smallest numbers stay
    finite."""
    tiny, nan, inf = np.finfo(np.float32).tiny, np.nan, np.inf
    for values, expected, scale in (
        ([0.0, -0.0, 0.0], [0, 0x80, 0], tiny),
        ([nan, 2.0, -1.0], [NAN, 0x7E, 0xF6], 2 / 448),
        ([nan, nan, nan], [NAN, NAN, NAN], tiny),
        ([inf, 1.0, -1.0], [NAN, 0, 0x80], inf),
        ([1e-44, 0.0, 0.0], [0, 0, 0], tiny),
    ):
        y, found = quantized(any_backend, np.array([values]), "float32", scaling=scaling)
        np.testing.assert_array_equal(bytes_of(y), [expected])
        np.testing.assert_array_equal(found.reshape(-1), np.float32([scale]))


@of_wide
@formats
def test_values(reference_backend, wide, dtype, kind, random):
    """Results are within the tolerance of the unquantized operator, with computed and given scales of each kind."""
    samples = [wide.sample(shape, random) for shape in SHAPES]
    samples += [s for s in wide.more_samples(random) if s.inputs[next(iter(s.inputs))].ndim and "seed" not in s.inputs]
    for i, sample in enumerate(samples):
        inputs = reference_inputs(reference_backend, sample, dtype)
        found = exact_range(wide, inputs, sample.options, dtype)
        for scaling in SCALINGS if i < len(SHAPES) else SCALINGS[i % 3 : i % 3 + 1]:
            for given in (None, float8.over_scales(found.greatest, scaling, float8.largest) / 100 + 0.01):
                scale = None if given is None else np.asarray(given).astype(compute_dtype(dtype))
                outputs = float8_call(reference_backend, wide, sample, dtype, scale=scale, scaling=scaling, kind=kind)
                y, scales, *rest = arrays(reference_backend, outputs)
                assert scales.dtype == np.dtype(compute_dtype(dtype))
                assert_quantized(found, y, scales, scale, scaling, kind)
                for s in rest:
                    _, exact = wide.reference(**inputs, **sample.options)
                    _, size = wide.magnitude(**inputs, **sample.options)
                    assert_accurate(s, exact, size, 1)


def ways(backend, function):
    """The function of tensors, eager, compiled and traced."""
    for way in WAYS[backend.framework]:
        if way == "eager":
            yield way, function
        elif way == "compiled":
            yield way, backend.traced(function)
        else:
            yield way, backend.tf.function(function, jit_compile=way == "xla")


@of_wide
@pytest.mark.parametrize("scaling", SCALINGS)
def test_same_bits(both_backends, wide, scaling, random):
    """The bits are the same in all frameworks, eager, compiled and traced."""
    for dtype, shape in (("float32", (3, 300)), ("bfloat16", (4, 1024))):
        sample, expected = wide.sample(shape, random), None
        for backend in both_backends:
            inputs = backend.tensors(sample, dtype)

            def call(*tensors, backend=backend, inputs=inputs, dtype=dtype):
                given = dict(zip(inputs, tensors, strict=True))
                kind = FORMATS[int(dtype == "bfloat16")]
                return backend.call(f"{wide.name}_float8", given, {"scaling": scaling, "dtype": kind})

            for way, function in ways(backend, call):
                found = arrays(backend, function(*inputs.values()))
                expected = expected or found
                for got, wanted in zip(found, expected, strict=True):
                    assert_same_bits(got, wanted, f"{backend} {way}")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gpu_has_the_bits_of_a_cpu(torch_gpu, dtype):
    """The GPU rounds like the CPU if both compute the same values."""
    from tests.helpers.frameworks import backend

    values = np.concatenate([around(kind, dtype) for kind in FORMATS])
    values = np.resize(values, (len(values) // 1024 + 1, 1024))
    for kind in FORMATS:
        for scaling in SCALINGS:
            one = quantized(backend("torch", "cpu"), values, dtype, scaling=scaling, kind=kind)
            two = quantized(torch_gpu, values, dtype, scaling=scaling, kind=kind)
            for got, wanted in zip(two, one, strict=True):
                assert_same_bits(got, wanted, f"{kind} {scaling}")


@of_wide
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("columns", [1024, 16384 + 1024, 4 * 16384])
def test_any_layout(torch_backend, wide, scaling, columns, random):
    """Strided, misaligned and transposed tensors give the bits of contiguous ones."""
    torch, sample = torch_backend.torch, wide.sample((3, columns), random)
    inputs = torch_backend.tensors(sample, "bfloat16")
    name, options = f"{wide.name}_float8", {"scaling": scaling}
    expected = torch_backend.call(name, inputs, options)

    def apart(x, by):
        larger = torch.zeros(*x.shape[:-1], x.shape[-1] + 2 * by, dtype=x.dtype, device=x.device)
        larger[..., by:-by] = x
        return larger[..., by:-by]

    for lay in (lambda x: apart(x, 8), lambda x: apart(x, 1), lambda x: x.mT.contiguous().mT if x.dim() > 1 else x):
        found = torch_backend.call(name, {key: lay(x) for key, x in inputs.items()}, options)
        for got, wanted in zip(found, expected, strict=True):
            assert_same_bits(torch_backend.to_numpy(got), torch_backend.to_numpy(wanted))
            assert got.is_contiguous()


@of_wide
def test_a_row_alone(any_backend, wide, random):
    """A row's bits do not depend on the other rows."""
    sample = wide.sample((6, 200), random)
    inputs = any_backend.tensors(sample, "bfloat16")
    for scaling in ("row", "block"):
        whole = arrays(any_backend, any_backend.call(f"{wide.name}_float8", inputs, {"scaling": scaling}))
        rows = {key: x[2:3] if key not in wide.parameters else x for key, x in inputs.items()}
        alone = arrays(any_backend, any_backend.call(f"{wide.name}_float8", rows, {"scaling": scaling}))
        for got, wanted in zip(alone, whole, strict=True):
            assert_same_bits(got, wanted[2:3])


def test_dtypes_of_the_framework(torch_backend, tf_cpu):
    torch, tf = torch_backend.torch, tf_cpu.tf
    for kind in FORMATS:
        x = torch.ones(1, 3, device=torch_backend.device)
        y, _ = torch_backend.functions.bias_act_float8(x, dtype=getattr(torch, kind))
        assert y.dtype is getattr(torch, kind)
        y, _ = tf_cpu.functions.bias_act_float8(tf.ones([1, 3]), dtype=tf.as_dtype(kind))
        assert y.dtype == tf.as_dtype(kind)


def test_dynamic_shapes_in_torch(torch_backend):
    """One compilation serves all sizes, also blocks of half a row."""
    torch, fo = torch_backend.torch, torch_backend.functions
    compilations = []

    def count(graph, inputs):
        compilations.append(graph)
        return graph.forward

    @torch.compile(backend=count, dynamic=True, fullgraph=True)
    def call(x):
        packed = fo.gated_act_float8(x, scaling="block", dtype=torch.float8_e5m2)
        return packed, fo.rms_norm_float8(x, scaling="block"), fo.bias_act_float8(x, scaling="row")

    torch.compiler.reset()
    for shape in ((3, 512), (5, 260), (2, 1000)):
        x = torch.ones(shape, device=torch_backend.device)
        (y, scales), (_, blocks), (_, rows) = call(x)
        half = shape[1] // 2
        assert (y.shape, scales.shape) == ((shape[0], half), (shape[0], -(-half // 128)))
        assert (blocks.shape, rows.shape) == ((shape[0], -(-shape[1] // 128)), (shape[0], 1))
    assert len(compilations) == 1


def test_unknown_shapes_in_tf(tf_backend):
    tf, fo = tf_backend.tf, tf_backend.functions
    unknown = None
    for shape, expected in (([unknown] * 2, [unknown] * 2), ([unknown, 300], [unknown, 3]), (unknown, unknown)):

        @tf.function(input_signature=[tf.TensorSpec(shape, tf.float32)])
        def call(x, expected=expected):
            y, scales = fo.bias_act_float8(x, scaling="block")
            assert scales.shape.as_list() == expected if expected else scales.shape.rank is None
            return y, scales

        _, scales = call(tf.ones([4, 300]))
        assert scales.shape == (4, 3)


def test_opcheck(torch_backend, random):
    torch = torch_backend.torch
    for wide in WIDE:
        inputs = torch_backend.tensors(wide.sample((4, 300), random), "float32").values()
        op = getattr(torch.ops.fusedops, f"{wide.name}_float8").default
        for scaling in SCALINGS:
            result = torch.library.opcheck(op, tuple(inputs), {"scaling": scaling})
            assert set(result.values()) == {"SUCCESS"}, wide.name


def test_vmap(torch_backend, random):
    """Each batch element has its own scales."""
    torch, fo = torch_backend.torch, torch_backend.functions
    x = torch_backend.from_numpy(random.normal(size=(3, 4, 200)).astype("float32"))
    for scaling in SCALINGS:
        y, scales = torch.vmap(lambda x, scaling=scaling: fo.rms_norm_float8(x, scaling=scaling))(x)
        for i in range(3):
            one, scale = fo.rms_norm_float8(x[i], scaling=scaling)
            assert_same_bits(torch_backend.to_numpy(y[i]), torch_backend.to_numpy(one))
            assert torch.equal(scales[i], scale)


@of_wide
def test_no_gradient_in_torch(torch_backend, wide, random):
    torch, name = torch_backend.torch, f"{wide.name}_float8"
    inputs = torch_backend.tensors(wide.sample((4, 30), random), "float32")
    for key in inputs:
        given = torch_backend.leaves(inputs, [key])
        with pytest.raises(RuntimeError, match=rf"fusedops\.{name}: {key} has no gradient; call it under torch\.no_g"):
            torch_backend.call(name, given)
        with torch.no_grad():
            y, *rest = torch_backend.call(name, given)
        assert not any(x.requires_grad for x in (y, *rest))


@of_wide
def test_no_gradient_in_tf(tf_backend, wide, random):
    """A gradient is refused when the operator is called under a tape, or when a function is differentiated as a
    whole."""
    tf, name = tf_backend.tf, f"{wide.name}_float8"
    inputs = tf_backend.tensors(wide.sample((4, 30), random), "float32")
    sentence = rf"fusedops\.{name}: there is no gradient; give it tf\.stop_gradient\(x\) of its inputs"
    call = tf.function(lambda *tensors: tf_backend.call(name, dict(zip(inputs, tensors, strict=True))))
    for key, x in inputs.items():
        with tf.GradientTape() as tape:
            tape.watch(x)
            with pytest.raises(LookupError, match=sentence):
                tf_backend.call(name, inputs)
            with pytest.raises(LookupError, match=sentence):
                call(*inputs.values())
            tf_backend.call(name, {**inputs, key: tf.stop_gradient(x)})


def bad_calls():
    x, gate = np.ones((2, 300), "float32"), "gated_act_float8"
    dtypes = "float64, float32, float16 or bfloat16"
    yield "rms_norm_float8", [x.astype("int32")], {}, f"x must be {dtypes}; got int32"
    yield "rms_norm_float8", [x, x[0, :9]], {}, "weight must have shape [300], the last dimension of x; got [9]"
    yield "bias_act_float8", [x[0, 0]], {}, "x must have at least one dimension; got shape []"
    yield gate, [x[:, :5]], {}, "gate must have an even last dimension, as it holds up as well; got shape [2, 5]"
    yield gate, [x], {"dtype": "float8"}, "dtype must be one of float8_e4m3fn, float8_e5m2; got 'float8'"
    yield gate, [x], {"dtype": None}, "dtype must be one of float8_e4m3fn, float8_e5m2; got 'None'"
    yield gate, [x], {"scaling": "column"}, "scaling must be one of tensor, row, block; got 'column'"
    for scaling, shape, expected in (
        ("row", (2, 3), "have shape [2, 1] for scaling='row'; got [2, 3]"),
        ("row", (2,), "have shape [2, 1] for scaling='row'; got [2]"),
        ("block", (2, 1), "have shape [2, 3] for scaling='block'; got [2, 1]"),
        ("tensor", (2, 1), "have one element for scaling='tensor'; got shape [2, 1]"),
        ("tensor", (0,), "have one element for scaling='tensor'; got shape [0]"),
    ):
        options = {"scaling": scaling, "scale": np.ones(shape, "float32")}
        yield "layer_norm_float8", [x], options, f"scale must {expected}"
    yield "rms_norm_float8", [x], {"scale": np.ones((2, 1))}, "scale must be float32; got float64"
    halves = x.astype("float16")
    yield "rms_norm_float8", [halves], {"scale": halves[:, :1]}, "scale must be float32; got float16"
    yield "rms_norm_float8", [x.astype("float64")], {"scale": x[:, :1]}, "scale must be float64; got float32"
    yield "rms_norm_float8", [x], {"scale": "1"}, "scale must be a tensor; got str"


@pytest.mark.parametrize("case", range(16))
def test_bad_calls_are_refused(any_backend, case):
    """Refused with one message, eager and traced."""
    cases = list(bad_calls())
    assert len(cases) == 16
    name, given, options, sentence = cases[case]
    tensors = [any_backend.from_numpy(np.asarray(x)) for x in given]
    options = {key: any_backend.from_numpy(x) if isinstance(x, np.ndarray) else x for key, x in options.items()}

    def call(*tensors):
        return getattr(any_backend.functions, name)(*tensors, **options)

    for way, function in ways(any_backend, call):
        with pytest.raises(Exception, match=re.escape(f"fusedops.{name}: {sentence}")) as refused:
            function(*tensors)
        if way == "eager":
            assert isinstance(refused.value, any_backend.errors)


def test_an_8_bit_input_is_refused(any_backend):
    y, _ = float8_call(any_backend, BIAS_ACT, Sample({"x": np.ones((2, 3))}), "float32")
    sentence = r"fusedops\.rms_norm: x must be float64, float32, float16 or bfloat16; got float8_e4m3fn"
    with pytest.raises(any_backend.errors, match=sentence):
        any_backend.functions.rms_norm(y)


def test_quantizing_operators_are_named_after_unquantized_ones(torch_cpu):
    """Each quantizing operator is named after the operator that it rounds."""
    for name in float8.SIGNATURES:
        assert hasattr(torch_cpu.functions, unquantized_name(name))
