"""JAX: the layers for Flax NNX have Flax's parameters, results and gradients."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("flax") is None, reason="flax is not installed")

# A few dozen roundings of 2^-53, of values of a few units; Flax's softmax is in float32.
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
CLOSE_IN_FLOAT32 = {"rtol": 64 * 2.0**-24, "atol": 64 * 2.0**-24}
LAYERS = {
    "RMSNorm": {},
    "LayerNorm": {},
    "LayerNorm without parameters": {"use_bias": False, "use_scale": False},
    "LayerNorm over two axes": {"reduction_axes": (-2, -1)},
    "Linear": {"out_features": 6},
    "Linear without bias": {"out_features": 6, "use_bias": False},
}


def gradients(jax, nnx, layer, x):
    """The result, and the gradients of x and of all parameters."""
    graph, state = nnx.split(layer)

    def total(state, x):
        y = nnx.merge(graph, state)(x)
        return jax.numpy.sin(y).sum(), y

    found, y = jax.jit(jax.grad(total, (0, 1), has_aux=True))(state, x)
    return [y, *jax.tree.leaves(found)]


@pytest.mark.parametrize("name", LAYERS)
def test_layers(jax_backend, name, random):
    from flax import nnx

    jax, kind = jax_backend.jax, name.split()[0]
    options = {"param_dtype": "float64", **LAYERS[name]}
    made = [getattr(module, kind)(8, rngs=nnx.Rngs(0), **options) for module in (jax_backend.functions.nnx, nnx)]
    state = jax.tree.map(lambda p: p + jax_backend.tensor(random.normal(size=p.shape), "float64"), nnx.state(made[1]))
    for layer in made:
        nnx.update(layer, state)
    x = jax_backend.tensor(random.normal(size=(2, 3, 8)), "float64")
    ours, theirs = (gradients(jax, nnx, layer, x) for layer in made)
    for got, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, expected, **CLOSE)


def test_attention_and_gated_linear(jax_cpu, random):
    """`attention_fn` of Flax's attention, with and without a mask; the gated layer is its formula."""
    from flax import nnx

    jax, fnnx = jax_cpu.jax, jax_cpu.functions.nnx
    x = jax_cpu.tensor(random.normal(size=(2, 5, 8)), "float64")
    options = {"num_heads": 2, "in_features": 8, "param_dtype": "float64", "decode": False, "rngs": nnx.Rngs(0)}
    functions = (fnnx.dot_product_attention, nnx.dot_product_attention)
    one, other = (nnx.MultiHeadAttention(attention_fn=f, **options) for f in functions)
    nnx.update(other, nnx.state(one))
    for mask in (None, nnx.make_causal_mask(x[..., 0])):
        np.testing.assert_allclose(one(x, mask=mask), other(x, mask=mask), **CLOSE_IN_FLOAT32)
    layer = fnnx.GatedLinear(8, 6, param_dtype="float64", rngs=nnx.Rngs(0))
    np.testing.assert_allclose(layer(x), jax.nn.silu(layer.gate(x)) * layer.up(x), **CLOSE)


@pytest.mark.parametrize("shape", [(3, 6), (6, 3), (4, 4)], ids=str)
@pytest.mark.parametrize("bias", [None, "float64", "float32", "bfloat16"])
def test_attention_of_other_keys(jax_cpu, shape, bias, random):
    """Flax's first query stands beside the first key, with any number of keys. A bias of any dtype is added."""
    from flax import nnx

    jax, fnnx = jax_cpu.jax, jax_cpu.functions.nnx
    queries, keys = shape
    q, k, v = (jax_cpu.tensor(random.normal(size=(2, n, 2, 4)), "float32") for n in (queries, keys, keys))
    added = None if bias is None else jax_cpu.tensor(random.normal(size=(1, 2, queries, keys)), bias)

    def results(f, causal):
        def total(q, k, v, added):
            y = f(q, k, v, added, is_causal=causal)
            return jax.numpy.sin(y).sum(), y

        places = (0, 1, 2) if bias is None else (0, 1, 2, 3)
        return jax.tree.leaves(jax.grad(total, places, has_aux=True)(q, k, v, added))

    assert "fusedops_attention" in str(jax.make_jaxpr(fnnx.dot_product_attention)(q, k, v, added))
    for causal in (False, True):
        found, expected = (results(module.dot_product_attention, causal) for module in (fnnx, nnx))
        for got, exact in zip(found, expected, strict=True):
            assert got.dtype == exact.dtype
            unit = 2.0**-9 if got.dtype == "bfloat16" else CLOSE_IN_FLOAT32["rtol"]  # one rounding of the result
            got, exact = (np.asarray(x, "float64") for x in (got, exact))
            np.testing.assert_allclose(got, exact, rtol=2 * unit, atol=2 * unit)


def test_dropout_draws_with_the_keys_of_flax(jax_cpu):
    """Other elements at each call, none in evaluation."""
    from flax import nnx

    jax = jax_cpu.jax
    layer, x = jax_cpu.functions.nnx.Dropout(0.5, rngs=nnx.Rngs(0)), jax.numpy.ones(1000)
    first, second = np.asarray(layer(x)), np.asarray(layer(x))
    assert set(first) == {0, 2} and np.any(first != second)
    np.testing.assert_array_equal(layer(x, deterministic=True), x)
    np.testing.assert_array_equal(layer(x, rngs=jax.random.key(1)), layer(x, rngs=jax.random.key(1)))
