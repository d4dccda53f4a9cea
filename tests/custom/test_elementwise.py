"""Expressions, beyond the guarantees of every operator: broadcasting, numbers, and the resulting operators."""

from __future__ import annotations

import copy
import itertools
import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.helpers.checks import check_backward, check_forward
from tests.helpers.elementwise import Expression
from tests.helpers.numerics import assert_same_bits
from tests.helpers.specification import Sample
from tests.tools.test_expressions import LEAVES, grown

PRODUCT = Expression("product", "a * b + sin(a - c)", least_rank=0)
CENTRED = Expression("centred", "d = a - mean(a * b); d * rsqrt(sum(d * d) + 1) + c")
SHAPES = [
    ((2, 3, 4), (4,), (3, 1)),
    ((4,), (2, 3, 4), (1,)),
    ((2, 1, 4), (3, 1), (2, 3, 4)),
    ((2, 3, 4, 5), (3, 1, 5), (2, 1, 4, 1)),  # in the middle
    ((1, 1), (6, 7), (1, 1, 1)),
    ((7, 1), (1, 9), (7, 9)),
    ((300, 1), (1, 40), ()),
    ((3000, 3), (3,), (3000, 1)),
    ((1, 5000), (4, 1), (4, 5000)),
    ((0, 3), (3,), (1, 1)),
    ((2, 0), (2, 1), (1,)),
    ((1,), (1,), (1,)),
]


def made(backend, spec, monkeypatch):
    """Makes the function known to the backend."""
    monkeypatch.setitem(backend.made, spec.name, spec.made_by(backend.functions))


@pytest.mark.parametrize("spec", [PRODUCT, CENTRED], ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcasting(any_backend, spec, shapes, random, monkeypatch):
    """Values and gradients in each dtype: tolerances follow from the dtype and the number of summed terms."""
    made(any_backend, spec, monkeypatch)
    sample = Sample({name: np.asarray(random.normal(size=shape)) for name, shape in zip("abc", shapes, strict=True)})
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        inputs = any_backend.tensors(sample, dtype)
        check_forward(any_backend, spec, sample, inputs)
        check_backward(any_backend, spec, sample, inputs)


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_float32_beside_16_bits(any_backend, narrow, random, monkeypatch):
    """Any but not all inputs are float32; each gradient has its input's dtype, and the result has 16 bits."""
    made(any_backend, PRODUCT, monkeypatch)
    for wide in itertools.product((False, True), repeat=3):
        if all(wide):
            continue
        sample = PRODUCT.sample((3, 40), random)
        dtypes = {name: "float32" if is_wide else narrow for name, is_wide in zip("abc", wide, strict=True)}
        inputs = {name: any_backend.tensor(x, dtypes[name]) for name, x in sample.inputs.items()}
        check_backward(any_backend, PRODUCT, sample, inputs)
        assert any_backend.dtype_of(any_backend.call("product", inputs)[0]) == narrow
        _, gradients = any_backend.gradients("product", inputs, {}, ("a", "b", "c"))
        assert {name: any_backend.dtype_of(g) for name, g in gradients.items()} == dtypes


NUMBERS = (0.3, -2, np.float64(1 / 3), np.float32(0.1), 10**20, float("inf"), -0.0)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_numbers(any_backend, dtype, random):
    """In any place except all: a number gives the bits of a tensor of one element, float32 if others have 16 bits."""
    f = any_backend.functions.elementwise("x * y - where(z < 0.2, x, z)")
    wide = "float64" if dtype == "float64" else "float32"
    for places in ([1], [2], [1, 2], [0], [0, 1]):
        for number in NUMBERS:
            values = [any_backend.tensor(random.normal(size=(5, 3)), dtype) for _ in range(3)]
            tensors = [*values]
            for i in places:
                values[i] = number
                tensors[i] = any_backend.tensor(np.array(float(number)), wide)
            got = any_backend.to_numpy(f(*values))
            if 0 not in places:  # otherwise another tensor comes first
                assert_same_bits(got, any_backend.to_numpy(f(*tensors)), f"{number!r} in {places}")
            assert got.dtype.name == dtype


def test_a_number_has_no_gradient(any_backend, random):
    x, y = (any_backend.tensor(random.normal(size=(4, 3)), "float32") for _ in range(2))
    f = any_backend.functions.elementwise("x * s + y", name="numbered")
    any_backend.made["numbered"] = f
    try:
        _, gradients = any_backend.gradients("numbered", {"x": x, "s": 2.5, "y": y}, {}, ("x", "y"))
    finally:
        del any_backend.made["numbered"]
    dy = any_backend.to_numpy(any_backend.upstream([x])[0])
    assert_same_bits(any_backend.to_numpy(gradients["x"]), dy * np.float32(2.5))
    assert_same_bits(any_backend.to_numpy(gradients["y"]), dy)


def operators(backend) -> set[str]:
    return set(backend.functions.library.TABLE)


def test_one_operator_for_each_set_of_numbers(any_backend):
    """Only in PyTorch's eager code: elsewhere a number is a tensor. The text identifies an operator, not its spacing,
    the function or a number's value."""
    elementwise = any_backend.functions.elementwise
    x = any_backend.tensor(np.ones(3), "float32")
    text = f"x * p + q * {len(operators(any_backend))}"  # of no other test, device or framework
    f = elementwise(text, name="counted")
    f(x, 1.5, x)
    before = operators(any_backend)
    for number in range(20):
        f(x, number / 7, x)
        elementwise(text.replace(" ", "  "), name="counted")(x, number, x)
    assert operators(any_backend) == before
    f(x, x, 2.0)
    new = operators(any_backend) - before
    assert len(new) == (2 if any_backend.framework == "torch" else 0)  # and its derivative
    before = operators(any_backend)
    assert any_backend.traced(lambda x: f(2.0, x, 3.0))(x) is not None
    assert operators(any_backend) == before


def test_inputs(any_backend):
    """Inputs in order of appearance, or as declared."""
    elementwise = any_backend.functions.elementwise
    x, y = (any_backend.tensor(np.array(v), "float32") for v in ([1.0, 2.0], [3.0, 5.0]))
    assert elementwise("y - x").inputs == ("y", "x")
    f = elementwise("y - x", inputs=["x", "y"])
    assert f.inputs == ("x", "y")
    assert any_backend.to_numpy(f(x, y)).tolist() == [2, 3]


def test_repr_and_attributes(package):
    f = package.elementwise("silu(g) * u", name="gate")
    assert (f.__name__, f.expression, f.inputs) == ("gate", "silu(g) * u", ("g", "u"))
    assert "struct Program" in f.source
    assert f.derivative.splitlines()[-1] == "return dg, du"
    assert "g, u" in f.__doc__
    assert repr(f) == "elementwise('silu(g) * u', inputs=None, name='gate')"
    assert package.elementwise("a").__name__ == "elementwise"


def test_the_derivative_is_an_expression(any_backend, random):
    """The displayed derivative, without its sums, computes the gradient."""
    elementwise = any_backend.functions.elementwise
    x, dy = (any_backend.tensor(random.normal(size=(3, 5)), "float64") for _ in range(2))
    f = elementwise("tanh(x) * mean(x * x)", name="derived")
    lines = re.sub(r"sum_to\((.*), x\)", r"\1", f.derivative)
    first = elementwise(lines)
    any_backend.made["derived"] = f
    try:
        _, gradients = any_backend.gradients("derived", {"x": x}, {}, ("x",), (dy,))
    finally:
        del any_backend.made["derived"]
    values = {"x": x, "dy": dy}
    got = first(*(values[name] for name in first.inputs))
    np.testing.assert_allclose(any_backend.to_numpy(got), any_backend.to_numpy(gradients["x"]), rtol=1e-12)


@pytest.mark.parametrize("again", [lambda f: pickle.loads(pickle.dumps(f)), copy.copy, copy.deepcopy])
def test_copies(any_backend, again):
    f = any_backend.functions.elementwise("x * 2 + y", inputs=["y", "x"], name="copied")
    g = again(f)
    assert (g.expression, g.inputs, g.__name__) == (f.expression, f.inputs, f.__name__)
    x = any_backend.tensor(np.arange(3.0), "float32")
    assert_same_bits(any_backend.to_numpy(g(x, 2.0)), any_backend.to_numpy(f(x, 2.0)))


REFUSED = [
    ((), "must have 3 arguments, x, y, z; got 0"),
    ((1, 2), "must have 3 arguments, x, y, z; got 2"),
    ((1, 2, 3, 4), "must have 3 arguments, x, y, z; got 4"),
    ((1.0, 2, 3.5), "one of the inputs must be a tensor; got numbers for x, y, z"),
]


@pytest.mark.parametrize(("given", "sentence"), REFUSED, ids=[str(len(given)) for given, _ in REFUSED])
def test_calls_refused(package, given, sentence):
    f = package.elementwise("x * y + z", name="three")
    with pytest.raises((TypeError, ValueError), match=rf"^fusedops\.\w+: {re.escape(sentence)}$"):
        f(*given)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("x *",), {}),
        (("x + cube(x)",), {}),
        (("3 + 4",), {}),
        (("x",), {"inputs": ["x", "y"]}),
        (("x + y",), {"inputs": ["x"]}),
        (("x",), {"inputs": "x"}),
        (("x",), {"inputs": []}),
        (("x",), {"name": "two words"}),
        (("x",), {"name": 3}),
        ((None,), {}),
        ((b"x",), {}),
        (("",), {}),
        (("x" * 20_000,), {}),
    ],
    ids=str,
)
def test_the_same_refusal_in_both_frameworks(both_packages, arguments, options):
    found = []
    for functions in both_packages:
        with pytest.raises((TypeError, ValueError), match=r"^fusedops\.elementwise: ") as caught:
            functions.elementwise(*arguments, **options)
        found.append((type(caught.value), str(caught.value)))
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 150_001), (300, 1023), (3001, 100), (99_999, 3)], ids=str)
@pytest.mark.parametrize("text", ["x * y + b", "exp(x)", "x - b", "a = x + y; a * a - exp(b)"])
def test_the_bits_of_a_row_do_not_depend_on_the_number_of_rows(any_backend, text, shape, dtype, random):
    """Large calls without intermediate values have larger tiles."""
    f = any_backend.functions.elementwise(text)
    values = {"x": random.normal(size=shape), "y": random.normal(size=shape), "b": random.normal(size=shape[1])}

    def call(rows: slice) -> np.ndarray:
        given = [values[name] if name == "b" else values[name][rows] for name in f.inputs]
        return any_backend.to_numpy(f(*(any_backend.tensor(value, dtype) for value in given)))

    whole = call(slice(None))
    for rows in (slice(0, 1), slice(shape[0] // 2, shape[0] // 2 + 1), slice(shape[0] - 1, None)):
        assert_same_bits(whole[rows], call(rows))


@pytest.fixture
def both_packages():
    # ImportError: a wheel may hold a binding whose framework is not installed
    modules = ("fusedops.torch", "fusedops.tf")
    return tuple(pytest.importorskip(name, exc_type=ImportError) for name in modules)


def test_threads_define_and_call(any_backend, random):
    """Parallel threads define the same expressions: each becomes one operator, and every call has its bits."""
    texts = [f"x * {i}.25 + tanh(y) / {i + 1}" for i in range(6)]
    x, y = (any_backend.tensor(random.normal(size=(33, 129)), "float32") for _ in range(2))

    def work(turn: int) -> list[np.ndarray]:
        order = texts if turn % 2 else texts[::-1]
        found = {}
        for text in order:
            f = any_backend.functions.elementwise(text, name="threaded")
            found[text] = [any_backend.to_numpy(f(x, y)), any_backend.to_numpy(f(x, 0.5))]
        return [array for text in texts for array in found[text]]

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(work, range(16)))
    for got in results[1:]:
        for left, right in zip(got, results[0], strict=True):
            assert_same_bits(left, right)


@hypothesis.given(text=st.recursive(LEAVES, grown, max_leaves=5), seed=st.integers(0, 99))
@hypothesis.settings(max_examples=12, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_random_expressions(any_backend, text, seed):
    """First derivatives are within the propagated error bounds of each operation."""
    random = np.random.default_rng(seed)
    spec = Expression("random", f"{text} + 0 * x")
    shapes = {"x": (3, 5), "w": (5,), "b": (3, 1), "s": ()}
    sample = Sample({name: np.asarray(random.normal(size=shapes[name]) + 0.1) for name in spec.expression.inputs})
    any_backend.made["random"] = spec.made_by(any_backend.functions)
    try:
        for dtype in ("float64", "bfloat16"):
            inputs = any_backend.tensors(sample, dtype)
            check_forward(any_backend, spec, sample, inputs)
            check_backward(any_backend, spec, sample, inputs)
    finally:
        del any_backend.made["random"]
