"""Gradients of branches: an infinite or NaN slope of an untaken branch has no effect."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fusedops.expressions import Expression
from tests.helpers.expressions import evaluate
from tests.helpers.numerics import assert_accurate, reference_dtype

# A function of x, and a point at which the function or a slope is infinite or NaN.
SINGULAR = {
    "sqrt(x)": 0.0,
    "sqrt(-x)": 1.0,
    "sqrt(abs(x))": 0.0,
    "rsqrt(x)": 0.0,
    "log(x)": 0.0,
    "log(-x)": 1.0,
    "log1p(x)": -1.0,
    "1 / x": 0.0,
    "sin(x) / x": 0.0,
    "exp(x)": 1000.0,
    "expm1(x)": 1000.0,
    "2 ** x": 2000.0,
    "x ** 1.5": -1.0,
    "x ** 0.3": 0.0,
    "x ** x": -1.0,
    "tanh(1 / x)": 0.0,
    "exp(-1 / x)": 0.0,
    "x * log(x)": 0.0,
    "sigmoid(x) * inf": 1.0,
    "relu(1 / x)": 0.0,
    "gelu(1 / x)": 0.0,
    "max(1 / x, x)": 0.0,
    "where(x == 0, 1 / x, log(x))": 0.0,
    "x / sum(x)": 0.0,
    "sqrt(mean(x))": 0.0,
    "log(sum(x))": 0.0,
    "x * rsqrt(mean(x * x))": 0.0,
    "max(sqrt(x))": 0.0,
    "mean(1 / x)": 0.0,
    "exp(x) / sum(exp(x))": 1000.0,
}
# Ways to select f at c = 1 and 3 * x at c = 0, and functions around the selection.
SELECTED = [
    "where(c, {f}, 3 * x)",
    "where(c == 0, 3 * x, {f})",
    "where(1 - c, 3 * x, where(c > 0, {f}, x))",
    "where(c < 1, 3 * x, where(c, {f}, {f}))",
]
AROUND = ["{y}", "w * ({y})", "x * w + 2 * ({y})", "sin({y})", "({y}) * sum(w)", "sum(({y}) * w)", "({y}) - mean({y})"]


def cases():
    """Texts with f, and the same texts without it."""
    for (f, x), selected in itertools.product(SINGULAR.items(), SELECTED):
        yield selected.format(f=f), "3 * x", x
    for (f, x), around in itertools.product(SINGULAR.items(), AROUND):
        yield around.format(y=SELECTED[0].format(f=f)), around.format(y="3 * x"), x


@pytest.mark.parametrize(("text", "plain", "singular"), [*cases()])
def test_derivatives_where_no_element_takes_the_branch(text, plain, singular, random):
    """First and second derivatives are those of the other branch."""
    values = [np.full((2, 4), singular), np.zeros((2, 4)), random.uniform(0.5, 2, (2, 4))]
    got, expected = (derivatives(f"{written} + 0 * c + 0 * w", values) for written in (text, plain))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def derivatives(text, values):
    """First and second gradients, for random upstream gradients."""
    definition, found = Expression(text, ["x", "c", "w"]).definition(), []
    for _ in range(2):
        random = np.random.default_rng(0)
        values = [*values, *(random.normal(size=y.shape) for y in evaluate(definition, values))]
        definition = definition.backward()
        found += evaluate(definition, values)
    return found


OF_ELEMENTS = [f for f in SINGULAR if not any(f"{row}(" in f for row in ("sum", "mean")) and f != "max(sqrt(x))"]


@pytest.mark.parametrize("f", OF_ELEMENTS)
def test_gradients_beside_elements_that_take_the_branch(any_backend, dtype, f, random, monkeypatch):
    text = f"where(c, {f}, 3 * x) * w"
    monkeypatch.setitem(any_backend.made, "branches", any_backend.functions.elementwise(text, inputs=[*"xcw"]))
    taken = random.integers(0, 2, (3, 40)) == 1
    regular = random.uniform(1, 2, (3, 40)) * (-1 if "-x" in f else 1)
    arrays = {"x": np.where(taken, regular, SINGULAR[f]), "c": taken * 1.0, "w": random.uniform(1, 2, (3, 40))}
    inputs = {name: any_backend.tensor(x, dtype) for name, x in arrays.items()}
    outputs, gradients = any_backend.gradients("branches", inputs, {}, ("x", "w"))
    exact = any_backend.numpy({**inputs, "dy": any_backend.upstream(outputs)[0]}, reference_dtype(dtype))
    for name, expected in (("x", 3 * exact["dy"] * exact["w"]), ("w", 3 * exact["dy"] * exact["x"])):
        got, expected = any_backend.to_numpy(gradients[name])[~taken], expected[~taken]
        assert_accurate(got, expected, np.abs(expected), 2, name)


@pytest.mark.parametrize("function", ["max", "min"])
def test_a_row_whose_extreme_is_nan(any_backend, dtype, function, random, monkeypatch):
    """Its gradient is NaN, as that of torch.amax; other rows have theirs."""
    monkeypatch.setitem(any_backend.made, "extreme", any_backend.functions.elementwise(f"{function}(x)"))
    x = random.normal(size=(5, 37))
    x[1, 3] = x[3, 0] = x[3, 36] = np.nan
    x[2] = 0.25
    _, gradients = any_backend.gradients("extreme", {"x": any_backend.tensor(x, dtype)}, {}, ("x",))
    got = any_backend.to_numpy(gradients["x"]).astype(float)
    assert np.isnan(got[[1, 3]]).all()
    assert not np.isnan(got[[0, 2, 4]]).any()
    assert [np.count_nonzero(row) for row in got[[0, 2, 4]]] == [1, 37, 1]


def test_gradients_of_extremes_are_torchs(torch_backend, random):
    """Ties, infinities and NaN, in every place."""
    torch = torch_backend.torch
    special = np.array([-np.inf, -1.0, 0.0, 2.0, np.inf, np.nan])
    rows = torch_backend.tensor(np.array(list(itertools.product(special, repeat=3))), "float64")
    for name, reference in (("max", torch.amax), ("min", torch.amin)):
        made = torch_backend.functions.elementwise(f"{name}(x)")
        dy = torch_backend.tensor(random.normal(size=(len(rows), 1)), "float64")
        found = []
        for function in (made, lambda x, reference=reference: reference(x, -1, keepdim=True)):
            x = rows.clone().requires_grad_()
            found += torch.autograd.grad(function(x), x, dy)
        torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)
