"""JAX: the optimizers update in place, with Optax's states and results."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest

from tests.helpers.numerics import assert_accurate

pytestmark = pytest.mark.skipif(importlib.util.find_spec("optax") is None, reason="optax is not installed")

STEPS = 4
# Each step of either formula rounds a parameter and its states at most this often, in any order.
ROUNDINGS = 20 * STEPS


def cases(optim, optax):
    schedule = optax.linear_schedule(0.1, 0.01, 10)
    return {
        "adamw": optim.adamw(0.01),
        "adamw, clipped": optim.adamw(schedule, 0.8, 0.9, weight_decay=0.1, max_norm=0.5),
        "adamw, wide": optim.adamw(0.01, mu_dtype="float64"),
        "sgd": optim.sgd(0.01),
        "sgd, nesterov": optim.sgd(schedule, 0.9, True, max_norm=0.5),
    }


@pytest.mark.parametrize("name", ["adamw", "adamw, clipped", "adamw, wide", "sgd", "sgd, nesterov"])
def test_results_are_those_of_optax(jax_backend, name, random):
    """Over parameters of two dtypes, of which each step is one call, in the order of the leaves."""
    import optax

    jax, optim = jax_backend.jax, jax_backend.functions.optim
    optimizer = cases(optim, optax)[name]
    # Optax's norm of float32 is in float32, and its wide states need parameters of one dtype.
    dtypes = ["float64", "float32"] if name in ("adamw", "sgd") else ["float64"] * 2

    def draw():
        return {key: jax_backend.tensor(random.normal(size=(3, 5)), x) for key, x in zip("ab", dtypes, strict=True)}

    params, grads = draw(), [draw() for _ in range(STEPS)]
    mine, theirs = (params, optimizer.init(params)), (params, optimizer.transformation.init(params))
    step = jax.jit(optimizer.update_in_place)
    for gradient in grads:
        mine = step(*mine, gradient)
        updates, state = optimizer.transformation.update(gradient, theirs[1], theirs[0])
        theirs = optax.apply_updates(theirs[0], updates), state
    assert jax.tree.structure(mine) == jax.tree.structure(theirs)
    for got, expected in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        assert got.dtype == expected.dtype
        if got.dtype.kind == "i":
            assert got == expected
        else:
            exact = np.asarray(expected, np.longdouble)
            assert_accurate(np.asarray(got), exact, np.abs(exact) + 3, ROUNDINGS)


def test_donated_parameters_are_written_in_place(jax_cpu):
    """The compiled step copies no parameter and no state."""
    pytest.importorskip("optax")
    jax, optim = jax_cpu.jax, jax_cpu.functions.optim
    optimizer = optim.adamw(0.01)
    params = {key: jax.numpy.ones((3, 5)) for key in "ab"}
    given = (params, optimizer.init(params), params)
    text = jax.jit(optimizer.update_in_place, donate_argnums=(0, 1)).lower(*given).compile().as_text()
    assert text.count("fusedops_adamw") and not re.search(r"f64\[3,5\]\S* copy\(", text)
