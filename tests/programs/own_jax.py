"""Run by tests/custom/test_operators.py: loads the guide's operator and another one into JAX, and prints the errors of
each use. Arguments: a folder for sources, the device."""

import jax
import jax.numpy as jnp
import numpy as np
from custom_operators import SCALED, SQUARE, check, of_guide, of_scaled, run

import fusedops.jax as fo

jax.config.update("jax_enable_x64", True)
guide = fo.load("guide", SQUARE, gradients=of_guide())
mine = fo.load("mine", SCALED, gradients={"scaled": of_scaled})
X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)))


@check
def eager_and_compiled():
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        x = X.astype(dtype)
        for function in (guide.square, jax.jit(guide.square)):
            np.testing.assert_array_equal(function(x), (x.astype("float64") ** 2).astype(dtype))


@check
def derivatives_and_maps():
    np.testing.assert_allclose(jax.grad(lambda x: guide.square(x).sum())(X), 2 * X, rtol=1e-15)
    hessian = jax.jit(jax.vmap(jax.hessian(lambda x: guide.square(x).sum())))(X)
    np.testing.assert_allclose(hessian, np.broadcast_to(2 * np.eye(5), (3, 5, 5)), rtol=1e-15)
    assert "scan" not in str(jax.make_jaxpr(jax.vmap(guide.square))(X))


@check
def derivative_as_a_formula():
    if jax.default_backend() == "gpu":
        return  # it has no kernel
    np.testing.assert_allclose(mine.scaled(X, X, factor=0.5), 1.5 * X, rtol=1e-15)
    dx, dbias = jax.grad(lambda x, b: mine.scaled(x, b, factor=3.0).sum(), (0, 1))(X, X)
    assert np.all(dx == 3) and np.all(dbias == 1)


run()
