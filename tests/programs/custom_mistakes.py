"""Run by tests/custom/test_operators.py: loads a library with mistakes into a framework, and prints the checks that
fail. Arguments: a folder for sources, the device, the framework."""

import re
import sys
from pathlib import Path

import numpy as np
from custom_operators import check, run

from tests.helpers.frameworks import backend

BACKEND = backend(sys.argv[3], "cpu")
IS_TORCH = BACKEND.framework == "torch"
RETURNED = {}  # results of the formula of plain's gradient


def of_plain(f, c, dy):
    return RETURNED["by the formula"]


mine = BACKEND.functions.load("mistakes", Path(__file__).with_name("mistakes.cpp"), gradients={"plain": of_plain})


def ways(function):
    if IS_TORCH:
        return {"eager": function, "compiled": BACKEND.traced(function)}
    tf = BACKEND.tf
    return {"eager": function, "graph": tf.function(function), "XLA": tf.function(function, jit_compile=True)}


def raised(function, *arguments):
    try:
        result = function(*arguments)
    except Exception as error:
        return error
    raise AssertionError(result)


def tensor(*shape):
    return BACKEND.tensor(np.random.default_rng(0).normal(size=shape), "float32")


def assert_same(left, right):
    np.testing.assert_array_equal(BACKEND.to_numpy(left), BACKEND.to_numpy(right))


@check
def any_cost():
    """A loop is right at any declared cost."""
    for shape in ((), (0,), (2, 0), (3,), (40, 1000)):
        for cost in (0, -1, -(2**40), 1, 10**6, 2**60):
            for function in ways(lambda x, cost=cost: mine.loop(x, cost=cost)).values():
                x = tensor(*shape)
                assert_same(function(x), x)


@check
def memory_that_runs_out():
    """In threads of the framework, and in the calling thread alone."""
    expected = RuntimeError if IS_TORCH else BACKEND.tf.errors.ResourceExhaustedError
    for shape in ((3,), (40, 1000)):
        for cost in (1, 10**6):
            for function in ways(lambda x, cost=cost: mine.loop(x, cost=cost, fails=True)).values():
                error = raised(function, tensor(*shape))
                assert isinstance(error, expected), repr(error)
                assert re.search(r"fusedops\.loop: CPU out of memory\. ", str(error)), error
    assert_same(mine.loop(tensor(40, 1000), cost=10**6), tensor(40, 1000))


@check
def a_rule_that_sets_no_output():
    sentence = "fusedops.silent: its rule must set the shape and dtype of the output y; got no dtype"
    for function in ways(lambda x: mine.silent(x)).values():
        error = raised(function, tensor(3))
        assert sentence in str(error), repr(error)
    error = raised(mine.silent, tensor(3))
    assert type(error) is RuntimeError if IS_TORCH else isinstance(error, BACKEND.tf.errors.InvalidArgumentError)


def gradient(x):
    if IS_TORCH:
        x = x.requires_grad_()
        return BACKEND.torch.autograd.grad(mine.plain(x).sum(), x, allow_unused=True)[0]
    tf = BACKEND.tf
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = mine.plain(x)
    return tape.gradient(y, x)


@check
def formula_results():
    expects = "fusedops.load: the gradient of plain must return a dict from names of inputs, x; got "
    for returned, kind, got in (
        ({"X": tensor(3)}, ValueError, "'X'"),
        ({"x": tensor(3), "y": None}, ValueError, "'y'"),
        ({3: None}, ValueError, "3"),
        (tensor(3), TypeError, type(tensor(3)).__name__),
        ((tensor(3),), TypeError, "tuple"),
        (None, TypeError, "NoneType"),
    ):
        RETURNED["by the formula"] = returned
        error = raised(gradient, tensor(3))
        assert type(error) is kind and str(error) == f"{expects}{got}", repr(error)
    for returned in (tensor(3), lambda: tensor(3)):
        RETURNED["by the formula"] = {"x": returned}
        assert_same(gradient(tensor(3)), tensor(3))
    for returned in ({}, {"x": None}):
        RETURNED["by the formula"] = returned
        assert gradient(tensor(3)) is None


run()
