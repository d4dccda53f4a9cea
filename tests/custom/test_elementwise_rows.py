"""Expressions over rows: every stage computes the same bits, empty rows, and the shape of a result."""

from __future__ import annotations

import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fusedops.expressions import Expression
from tests.helpers.numerics import assert_same_bits
from tests.tools.test_expressions import LEAVES, grown

SHAPES = {"x": (40, 37), "w": (37,), "b": (40, 1), "s": ()}
# Further uses of the products in the last stage only: they must not change roundings there.
PRODUCTS = ("x * w", "x * b")


@hypothesis.given(text=st.recursive(LEAVES, grown, max_leaves=6), seed=st.integers(0, 99))
@hypothesis.settings(max_examples=25, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("product", PRODUCTS)
def test_extremes_equal_elements_of_their_row(any_backend, product, text, seed):
    """The last stage finds the elements that equal the maximum and the minimum."""
    names = ["x", "w", "b", "s"]
    q = f"p = {product}; q = p + {text}"
    written = f"{q}; return where(q == max(q), 1, 0), where(q == min(q), 1, 0), p, q * p + 0 * (x + w + b + s)"
    function = any_backend.functions.elementwise(written, inputs=names)
    random = np.random.default_rng(seed)
    for dtype in ("float64", "float32", "bfloat16"):
        inputs = [any_backend.tensor(random.normal(size=SHAPES[name]) + 0.1, dtype) for name in names]
        largest, smallest, _, values = (any_backend.to_numpy(y).astype(float) for y in function(*inputs))
        regular = ~np.isnan(values).any(-1)
        for found in (largest, smallest):
            assert (found[regular].sum(-1) >= 1).all(), (written, dtype)


def test_every_row_has_a_gradient_of_its_extreme(any_backend, dtype, random, monkeypatch):
    """The gradients of a row's elements add up to its upstream gradient, for any other use of the values."""
    text = "p = x * y; q = p + z; return q * p - max(q), q * p - min(q)"
    monkeypatch.setitem(any_backend.made, "extremes", any_backend.functions.elementwise(text))
    inputs = {name: any_backend.tensor(random.normal(size=(2000, 37)), dtype) for name in "xyz"}
    outputs, _ = any_backend.gradients("extremes", inputs, {}, ("z",))
    for which in range(2):
        upstream = tuple(any_backend.tensor(np.full((2000, 37), float(i == which)), dtype) for i in range(2))
        _, gradients = any_backend.gradients("extremes", inputs, {}, ("z",), upstream)
        numbers = {name: any_backend.to_numpy(x).astype(float) for name, x in inputs.items()}
        shares = numbers["x"] * numbers["y"] - any_backend.to_numpy(gradients["z"]).astype(float)
        assert (np.round(shares.sum(-1) / 37) == 1).all()  # each of the 37 results has upstream gradient 1
    assert len(outputs) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sum(x)", 0.0),
        ("sum(x) + 1", 1.0),
        ("mean(x)", np.nan),
        ("max(x)", -np.inf),
        ("min(x)", np.inf),
        ("exp(max(x)) + 2 * sum(x * x)", 0.0),
        ("where(sum(x > 0) > 0, mean(x), 7)", 7.0),
        ("sum(2) + sum(x)", 0.0),
        ("max(sum(x))", -np.inf),
        ("mean(x - mean(x))", np.nan),
        ("sum(x - mean(x)) + s", 2.5),
        ("max(s) + sum(x)", -np.inf),
    ],
)
@pytest.mark.parametrize("shape", [(0,), (3, 0), (700, 0), (2, 3, 0), (0, 0)], ids=str)
def test_rows_of_no_elements(any_backend, dtype, shape, text, expected):
    """A reduction of no elements gives its neutral value, a mean NaN; the rest of the formula applies to it."""
    x = any_backend.tensor(np.zeros(shape), dtype)
    function = any_backend.functions.elementwise(text)
    got = any_backend.to_numpy(function(x, 2.5) if "s" in function.inputs else function(x))
    assert got.dtype.name == dtype
    np.testing.assert_array_equal(got.astype(float), np.full((*shape[:-1], 1), expected))


def test_several_results_of_rows_of_no_elements(any_backend, dtype):
    """Results per element are empty, results per row are not."""
    function = any_backend.functions.elementwise("return x * b, max(x), sum(x) + 1, b - mean(x)")
    x, b = any_backend.tensor(np.zeros((5, 0)), dtype), any_backend.tensor(np.ones((5, 1)), dtype)
    results = [any_backend.to_numpy(y).astype(float) for y in function(x, b)]
    assert [y.shape for y in results] == [(5, 0), (5, 1), (5, 1), (5, 0)]
    assert (results[1] == -np.inf).all() and (results[2] == 1).all()


def test_gradients_of_rows_of_no_elements(any_backend, dtype, monkeypatch):
    """Empty for inputs without elements, and zero for inputs broadcast along them."""
    monkeypatch.setitem(
        any_backend.made, "none", any_backend.functions.elementwise("return sum(x * b * s), max(x), mean(x) * b")
    )
    shapes = {"x": (5, 0), "b": (5, 1), "s": (1,)}
    inputs = {name: any_backend.tensor(np.ones(shape), dtype) for name, shape in shapes.items()}
    _, gradients = any_backend.gradients("none", inputs, {}, tuple(inputs))
    for name, gradient in gradients.items():
        assert_same_bits(any_backend.to_numpy(gradient).astype(float), np.zeros(shapes[name]), name)


# Forms in which y or its reduction folds away, except for its shape.
FOLDED = [
    ("where(0.25 > 3.0, {y}, 0.25)", 0.25),
    ("where(1, 0.25, {y})", 0.25),
    ("{y} ** 0", 1.0),
    ("where({y} > 0, 0.25, 0.25)", 0.25),
    ("max(where(0, {y}, 2), where(0, {y}, 2))", 2.0),
]


@pytest.mark.parametrize(("form", "value"), FOLDED)
@pytest.mark.parametrize("of_rows", [False, True])
def test_an_input_that_folds_away(any_backend, form, value, of_rows, random, monkeypatch):
    """It still determines the shape of the result, and has a gradient of zeros."""
    y = "max(sqrt(1.25 + y ** 2))" if of_rows else "sqrt(1.25 + y ** 2)"
    for text, rows in (("max(tanh(x)) - {folded}", of_rows), ("{folded}", of_rows), ("x * {folded}", False)):
        function = any_backend.functions.elementwise(text.format(folded=form.format(y=y)), inputs=None)
        shapes = {"x": (3, 5), "y": (5,)}
        inputs = {name: any_backend.tensor(random.normal(size=shapes[name]), "float32") for name in function.inputs}
        monkeypatch.setitem(any_backend.made, "folded", function)
        outputs, gradients = any_backend.gradients("folded", inputs, {}, tuple(inputs))
        shape = (3, 5) if "x" in inputs else (5,)
        assert tuple(outputs[0].shape) == ((*shape[:-1], 1) if rows else shape), text
        assert_same_bits(any_backend.to_numpy(gradients["y"]), np.zeros(5, np.float32), text)


def test_shapes_follow_from_the_text():
    """Folding changes no shape: per element, per row, or of the call."""
    of_rows = {"max(x)": True, "2": False, "max(2)": True, "x": False, "where(0, max(x), 2)": True}
    for (left, rows), (right, others) in itertools.product(of_rows.items(), repeat=2):
        for form in ("where(0, {}, {})", "where(1, {}, {})", "where({}, 3, {})", "max({}, {})", "{} ** 0 + {}"):
            definition = Expression(f"return x, {form.format(left, right)}", ["x"]).definition()
            elementwise = "x" in (left, right)
            assert definition.results[1].of_rows == ((rows or others) and not elementwise), form.format(left, right)
