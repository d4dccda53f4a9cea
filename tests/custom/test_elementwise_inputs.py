"""The inputs of expressions: mixed dtypes, booleans and integers, calls by name."""

from __future__ import annotations

import inspect
import itertools
import re

import numpy as np
import pytest

from tests.helpers.elementwise import Expression
from tests.helpers.numerics import assert_same_bits

FLOATING = ("float64", "float32", "float16", "bfloat16")
INTEGRAL = ("bool", "uint8", "int8", "int16", "int32", "int64")
TEXT = "where(n, x * w, 0.5) + n * mean(x - w)"
# The shapes of n, x and w: each can be whole, a column, a row, one element, or some of the leading dimensions.
SHAPES = [
    ((4, 6, 33), (4, 6, 33), (33,)),
    ((33,), (4, 6, 33), (4, 6, 1)),
    ((4, 6, 1), (6, 33), (1,)),
    ((), (4, 6, 33), (6, 1)),
    ((4, 1, 33), (6, 33), (4, 6, 33)),
    ((4, 1, 1), (4, 6, 33), (33,)),
    ((3, 9000), (3, 9000), (9000,)),
    ((300, 8), (300, 8), (8,)),
]


def wide(dtype: str) -> str:
    """The compute dtype of an expression."""
    return "float64" if dtype == "float64" else "float32"


def integers(dtype: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    if dtype == "bool":
        return np.asarray(random.random(shape) < 0.5)
    limits = np.iinfo(dtype)
    values = random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    return np.asarray(np.where(random.random(shape) < 0.3, 0, values), dtype)


def gradients(backend, f, inputs, wanted):
    """The result, and the gradients of the wanted inputs."""
    backend.made["f"] = f
    try:
        (y,), found = backend.gradients("f", inputs, {}, wanted)
    finally:
        del backend.made["f"]
    return {"y": y, **found}


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("integral", INTEGRAL)
def test_booleans_and_integers(any_backend, integral, dtype, random):
    """They give the bits of a tensor in the compute dtype with the same values, rounded to nearest: 2**24 + 1 is not a
    float32. Covers results and the gradients of the other inputs, for every broadcast."""
    f = any_backend.functions.elementwise(TEXT, name="integral")
    for shapes in SHAPES:
        n = integers(integral, shapes[0], random)
        x, w = (any_backend.tensor(random.normal(size=shape), dtype) for shape in shapes[1:])
        given = {"n": any_backend.tensor(n, ""), "x": x, "w": w}
        assert any_backend.dtype_of(given["n"]) == integral
        floating = {**given, "n": any_backend.tensor(n.astype(wide(dtype)), wide(dtype))}
        got, expected = (gradients(any_backend, f, inputs, ("x", "w")) for inputs in (given, floating))
        for name, tensor in got.items():
            assert any_backend.dtype_of(tensor) == dtype
            assert_same_bits(any_backend.to_numpy(tensor), any_backend.to_numpy(expected[name]), f"{name} of {shapes}")


@pytest.mark.frameworks("torch", "tf")
@pytest.mark.parametrize("integral", INTEGRAL)
def test_integers_are_converted_as_the_framework_converts_them(any_backend, integral, random):
    n = integers(integral, (70, 65), random)
    if integral in ("int32", "int64"):
        n[0, :4] = [2**24 - 1, 2**24 + 1, 2**24 + 3, -(2**24) - 1]
    given = any_backend.tensor(n, "")
    for dtype in ("float64", "float32"):
        x = any_backend.tensor(np.zeros(n.shape), dtype)
        got = any_backend.functions.elementwise("n + x", name="converted")(given, x)
        own = any_backend.tf.cast(given, dtype) if any_backend.framework == "tf" else given.to(x.dtype)
        assert_same_bits(any_backend.to_numpy(got), any_backend.to_numpy(own))


@pytest.mark.frameworks("torch", "tf")
def test_a_mask_of_what_is_differentiated(any_backend, random):
    """In eager and in traced code: the mask has no gradient, and does not affect the others."""
    f = any_backend.functions.elementwise("where(mask, x * x, n * x)", name="own_mask")
    x = any_backend.tensor(random.normal(size=(4, 5)), "float64")
    slope = np.where(any_backend.to_numpy(x) > 0, 2 * any_backend.to_numpy(x), 3)
    if any_backend.framework == "torch":
        torch = any_backend.torch
        three = torch.full((), 3, device=x.device)
        for call in (lambda x: f(x > 0, x, three), lambda x: f(x > 0, x, 3)):
            leaf = x.clone().requires_grad_()
            (got,) = torch.autograd.grad(call(leaf).sum(), leaf)
            np.testing.assert_array_equal(any_backend.to_numpy(got), slope)
        return
    tf = any_backend.tf

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x > 0, x, tf.constant(3))
        return tape.gradient(y, x)

    for call in (gradient, tf.function(gradient), tf.function(gradient, jit_compile=True)):
        np.testing.assert_array_equal(any_backend.to_numpy(call(x)), slope)


def test_a_mask(any_backend):
    """A common first expression: without a floating input other than a number, its dtype is float32."""
    x = any_backend.tensor(np.array([1.0, np.nan, np.inf]), "float32")
    mask = any_backend.tensor(np.array([True, False, True]), "")
    elementwise = any_backend.functions.elementwise
    got = any_backend.to_numpy(elementwise("where(mask, x, 0)")(mask, x))
    np.testing.assert_array_equal(got, [1, 0, np.inf])
    got = any_backend.to_numpy(elementwise("where(mask, a, b)")(mask, 2.5, -1))
    np.testing.assert_array_equal(got, np.float32([2.5, -1, 2.5]))
    assert got.dtype == np.float32


@pytest.mark.frameworks("torch", "tf")
@pytest.mark.parametrize("integral", ["bool", "int32", "int64"])
def test_integers_in_traced_code(any_backend, integral, random):
    """The same bits, forward and backward, also with numbers as inputs."""
    f = any_backend.functions.elementwise("where(n, x * s, w) - n * x", name="traced")
    n = any_backend.tensor(
        integers(integral, (5, 7), random) % 5 if integral != "bool" else random.random((5, 7)) < 0.5, ""
    )
    x, w = (any_backend.tensor(random.normal(size=shape), "float32") for shape in ((5, 7), (7,)))

    def call(n, x, w):
        return f(n, x, 1.25, w)

    compiled = any_backend.traced(call)
    assert_same_bits(any_backend.to_numpy(compiled(n, x, w)), any_backend.to_numpy(call(n, x, w)))
    if any_backend.framework == "tf":
        tf = any_backend.tf

        def of_gradients(n, x, w):
            with tf.GradientTape() as tape:
                tape.watch([x, w])
                y = call(n, x, w)
            return tape.gradient(y, [x, w])

        expected = of_gradients(n, x, w)
        for function in (tf.function(of_gradients), tf.function(of_gradients, jit_compile=True)):
            for got, own in zip(function(n, x, w), expected, strict=True):
                assert_same_bits(any_backend.to_numpy(got), any_backend.to_numpy(own))
        mapped = tf.vectorized_map(lambda values: call(*values, w), (n, x))
        assert_same_bits(any_backend.to_numpy(mapped), any_backend.to_numpy(call(n, x, w)))
    else:
        torch = any_backend.torch
        mapped = torch.vmap(call, in_dims=(0, 0, None))(n, x, w)
        assert_same_bits(any_backend.to_numpy(mapped), any_backend.to_numpy(call(n, x, w)))
        _, tangent = torch.func.jvp(lambda x: call(n, x, w), (x,), (torch.ones_like(x),))
        (slope,) = torch.func.vjp(lambda x: call(n, x, w), x)[1](torch.ones_like(x))
        torch.testing.assert_close(tangent, slope)
        given = x.double().requires_grad_(), w.double().requires_grad_()
        assert torch.autograd.gradcheck(lambda x, w: call(n, x, w), given, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(lambda x, w: call(n, x, w), given)


@pytest.mark.parametrize("dtypes", list(itertools.product(FLOATING, repeat=2)), ids="-".join)
def test_the_order_of_dtypes(any_backend, dtypes, random):
    """float32 mixed with one 16-bit dtype, in any order, gives the bits of float32 rounded once; other mixes are errors
    that name the input."""
    f = any_backend.functions.elementwise("x * w + mean(x)", name="ordered")
    tensors = [any_backend.tensor(random.normal(size=(6, 40)), dtype) for dtype in dtypes]
    narrow = sorted({dtype for dtype in dtypes if dtype.endswith("16")})
    if len(set(dtypes)) == 1 or (len(narrow) == 1 and "float32" in dtypes):
        found = gradients(any_backend, f, dict(zip("xw", tensors, strict=True)), ("x", "w"))
        result = narrow[0] if narrow else dtypes[0]
        assert {name: any_backend.dtype_of(y) for name, y in found.items()} == {
            "y": result,
            "x": dtypes[0],
            "w": dtypes[1],
        }
        as_float = [any_backend.tensor(any_backend.to_numpy(x).astype(wide(result)), wide(result)) for x in tensors]
        full = any_backend.tensor(any_backend.to_numpy(f(*as_float)), result)
        assert_same_bits(any_backend.to_numpy(found["y"]), any_backend.to_numpy(full))
        return
    like = next((place for place, dtype in enumerate(dtypes) if dtype in narrow), 0)
    expected = f"have {'xw'[like]}'s dtype, {dtypes[like]}" + (", or float32" if narrow else "")
    sentence = f"fusedops.ordered: {'wx'[like]} must {expected}; got {dtypes[1 - like]}"
    with pytest.raises(any_backend.errors, match=re.escape(sentence)):
        f(*tensors)


@pytest.mark.parametrize("dtype", FLOATING)
def test_a_number_first(any_backend, dtype, random):
    """A number does not decide the dtype."""
    f = any_backend.functions.elementwise("a * x + b", name="first")
    x = any_backend.tensor(random.normal(size=(3, 5)), dtype)
    y = f(3, x, 1.5)
    assert any_backend.dtype_of(y) == dtype
    assert_same_bits(any_backend.to_numpy(any_backend.traced(lambda x: f(3, x, 1.5))(x)), any_backend.to_numpy(y))


NUMBERED = Expression("numbered", "m = mean(x); return m, rsqrt(mean(x * x) + eps), sum(s) * x")


def test_rows_of_numbers_in_traced_code(any_backend, random):
    """In eager and traced code, results of reductions and numbers have one column; with tensors they have all
    columns."""
    f = NUMBERED.made_by(any_backend.functions)
    x = any_backend.tensor(random.normal(size=(4, 30)), "float32")
    for values, shapes in (((1e-3, 2.0), [(4, 1), (4, 1), (4, 30)]), ((x, 2.0), [(4, 1), (4, 30), (4, 30)])):

        def call(x, values=values):
            return f(x, *values)

        eager, traced = call(x), any_backend.traced(call)(x)
        assert [tuple(y.shape) for y in eager] == shapes
        for got, own in zip(traced, eager, strict=True):
            assert_same_bits(any_backend.to_numpy(got), any_backend.to_numpy(own))


def test_by_name(any_backend, random):
    f = any_backend.functions.elementwise("x - y * z", name="named")
    x, y, z = (any_backend.tensor(random.normal(size=(3, 4)), "float32") for _ in range(3))
    expected = any_backend.to_numpy(f(x, y, z))
    for got in (f(x=x, y=y, z=z), f(z=z, x=x, y=y), f(x, z=z, y=y), f(x, y, z=z)):
        assert_same_bits(any_backend.to_numpy(got), expected)
    assert_same_bits(
        any_backend.to_numpy(any_backend.traced(lambda x, z: f(x, z=z, y=2.0))(x, z)),
        any_backend.to_numpy(f(x, 2.0, z)),
    )
    assert list(inspect.signature(f).parameters) == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("positional", "named", "sentence"),
    [
        ("x", "", "fusedops.named: must have 3 arguments, x, y, z; got 1"),
        ("x", "y", "named() missing required arguments: 'z'"),
        ("", "y", "named() missing required arguments: 'x', 'z'"),
        ("xy", "y", "named() got multiple values for argument 'y'"),
        ("xy", "a", "named() got an unexpected keyword argument 'a'"),
        ("xyz", "a", "named() got an unexpected keyword argument 'a'"),
    ],
)
def test_wrong_names(any_backend, positional, named, sentence):
    f = any_backend.functions.elementwise("x - y * z", name="named")
    one = any_backend.tensor(np.ones(2), "float32")
    with pytest.raises(TypeError, match=f"^{re.escape(sentence)}$"):
        f(*[one] * len(positional), **dict.fromkeys(named, one))


@pytest.mark.parametrize("value", [1 / 3, 2.0**100])
def test_a_number_beside_a_reduction(any_backend, value, random):
    """The bits are those of a number in the text: derivatives do not sum it over the row, which would round and
    overflow."""
    make, x = any_backend.functions.elementwise, any_backend.tensor(random.normal(size=(3, 1003)), "float32")
    of_numbers, of_text = make("sum(x) * s", name="numbered"), make(f"sum(x) * {value!r}", name="written")
    found = gradients(any_backend, lambda x: of_numbers(x, value), {"x": x}, ["x"])
    expected = gradients(any_backend, of_text, {"x": x}, ["x"])
    for key, y in expected.items():
        assert_same_bits(any_backend.to_numpy(found[key]), any_backend.to_numpy(y))


@pytest.mark.parametrize("name", ["self", "values", "named", "f"])
def test_any_name_may_be_given_by_name(any_backend, name):
    f = any_backend.functions.elementwise(f"{name} * 2")
    x = any_backend.tensor(np.ones(2), "float32")
    assert_same_bits(any_backend.to_numpy(f(**{name: x})), any_backend.to_numpy(f(x)))
