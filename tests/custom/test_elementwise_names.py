"""Names of expressions and of their inputs, and their operators: no name stands for two programs, each reaches every
framework, and a refused one does not affect the others."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from fusedops.expressions import Expression, expression
from tests.helpers.numerics import assert_same_bits

ALIKE = [("gate", "Gate"), ("g1", "g_1"), ("a_b", "aB"), ("a__b", "A_B"), ("x_2", "X2"), ("n", "N_")]
LENGTHS = [1, 31, 32, 33, 47, 48, 49, 60, 61, 62, 63, 64, 100, 1000]


@pytest.fixture
def ones(any_backend):
    return any_backend.tensor(np.array([1.0, 2.0]), "float64")


@pytest.mark.parametrize("names", ALIKE, ids="-".join)
def test_names_that_look_alike(any_backend, ones, names):
    """Names of functions, and names of the inputs of one."""
    functions = [any_backend.functions.elementwise("3 * x", name=name) for name in names]
    for f, name in zip(functions, names, strict=True):
        assert any_backend.to_numpy(f(ones)).tolist() == [3, 6]
        assert f.__name__ == name
    a, b = names
    f = any_backend.functions.elementwise(f"{a} - 2 * {b}", name="alike")
    assert f.inputs == names
    for got in (f(ones, 3 * ones), f(**{b: 3 * ones, a: ones})):
        assert any_backend.to_numpy(got).tolist() == [-5, -10]
    any_backend.made["alike"] = f
    try:
        _, gradients = any_backend.gradients("alike", {"a": ones, "b": 3 * ones}, {}, ("a", "b"), (ones,))
    finally:
        del any_backend.made["alike"]
    assert any_backend.to_numpy(gradients["a"]).tolist() == [1, 2]
    assert any_backend.to_numpy(gradients["b"]).tolist() == [-2, -4]


def test_errors_have_the_users_names(any_backend, ones):
    for name in ("Gate", "gate_value", "error", "I" * 70):
        f = any_backend.functions.elementwise(f"gate + {name}", name="called")
        wrong = any_backend.tensor(np.ones(3), "float64")
        with pytest.raises(any_backend.errors, match=f"fusedops.called: {name} must broadcast"):
            f(ones, wrong)


@pytest.mark.parametrize("length", LENGTHS)
def test_long_names(any_backend, ones, length):
    """Long names of inputs, results and functions, with first and second derivatives, in eager and traced code."""
    a, b, c = (letter * length for letter in "abc")
    text = f"{a} * {a} * {b}" if length > 400 else f"{c} = {a} * {a} * {b}; return {c}, {a} + {b}"
    f = any_backend.functions.elementwise(text, name="f" * min(length, 63))
    first = f if length > 400 else lambda *values: f(*values)[0]
    any_backend.made["long"] = first
    try:
        second = any_backend.second_gradients("long", {"a": ones, "b": 1 * ones}, {}, ("a", "b"), lambda y: 0 * y + 1)
    finally:
        del any_backend.made["long"]
    assert any_backend.to_numpy(second[0]).tolist() == [4, 8]  # of 2 a b + a², by a
    traced = any_backend.traced(lambda x: first(x, x))
    assert any_backend.to_numpy(traced(ones)).tolist() == [1, 8]


def test_another_program_of_the_same_digits(any_backend, ones, monkeypatch):
    """An error, never the values of the other program."""
    monkeypatch.setattr(expression, "digest", lambda key: "0" * 15 + "1")
    name = f"digits_{any_backend.framework}_{any_backend.device}"
    f = any_backend.functions.elementwise("x * 37.5244140625", name=name)
    assert any_backend.functions.elementwise("x  *  37.5244140625", name=name)(ones) is not None
    for _ in range(2):
        with pytest.raises(RuntimeError, match="must name one expression; got another with the same digits"):
            any_backend.functions.elementwise("x * 67.8564453125", name=name)
    with pytest.raises(RuntimeError, match="must name one expression"):
        f(2.0) if len(f.inputs) > 1 else any_backend.functions.elementwise("x * y", name=name)
    assert any_backend.to_numpy(f(ones)).tolist() == [37.5244140625, 2 * 37.5244140625]


def test_digits_depend_on_the_whole_program():
    """Including the derivative: an expanded formula has another derivative than the function."""
    written = "v = min(x * x, 1000); x * sigmoid(x * (1.5957691216057308 + 0.07135481627260025 * v))"
    texts = ("x * 2.0", "x * -2.0", "x * 0.0", "x * -0.0", "y * 2.0", "gelu_tanh(x)", written)
    names = [Expression(text).definition().name for text in texts]
    assert len(set(names)) == len(names)
    assert all(len(name.rpartition("_")[2]) == 16 for name in names)
    assert Expression("x*2").definition().name == Expression("x  * 2.0").definition().name
    assert Expression("x*2", name="a").definition().name.rpartition("_")[2] != names[0].rpartition("_")[2]


def test_one_refused_operator(any_backend, ones):
    """The error is raised each time, and every other expression works."""
    bad = Expression("x * 3 + 7.25", name="refused").definition()
    named = {bad.name, bad.backward().name}

    def refuse(operator):
        if operator.name in named:
            raise RuntimeError("this one is refused")

    any_backend.functions.library.for_each(refuse)
    try:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="this one is refused"):
                any_backend.functions.elementwise("x * 3 + 7.25", name="refused")
            number = len(any_backend.functions.library.TABLE)
            f = any_backend.functions.elementwise(f"x * 2 + 0 * {number}", name="behind")
            assert any_backend.to_numpy(f(ones)).tolist() == [2, 4]
    finally:
        named.clear()


def test_another_thread_adds_operators_in_between(any_backend, ones, monkeypatch):
    """No operator is registered with the framework before its second derivative is known."""
    registry = type(any_backend.functions.elementwise("x")).registry
    threads = []

    class Interrupted:
        def __getattr__(self, name):
            return getattr(library, name)

        def fusedops_define(self, definition):
            refused = library.fusedops_define(definition)
            threads.append(threading.Thread(target=any_backend.functions.library.added))
            threads[-1].start()
            threads[-1].join(0.3)  # it may wait until this thread has added the rest
            return refused

    library = registry.library
    monkeypatch.setattr(registry, "library", Interrupted())
    text = f"x * x * x + 0 * {len(any_backend.functions.library.TABLE)}"
    any_backend.made["between"] = any_backend.functions.elementwise(text, name="between")
    for thread in threads:
        thread.join()
    try:
        second = any_backend.second_gradients("between", {"x": ones}, {}, ("x",), lambda y: 0 * y + 1)
    finally:
        del any_backend.made["between"]
    assert_same_bits(any_backend.to_numpy(second[0]), 6 * np.array([1.0, 2.0]))
