"""JAX: jax.vmap over an operator's tensors gives the results of single calls."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.calls import function_of
from tests.helpers.numerics import assert_same_bits
from tests.specifications import BUILT_IN

SIZE = 2


@pytest.mark.parametrize("spec", BUILT_IN, ids=str)
def test_every_operator(jax_cpu, spec, random):
    """All tensors mapped, and the first one alone; of matmuls other shapes take other orders of sums."""
    jax = jax_cpu.jax
    sample = spec.sample((3, 4), random)
    inputs, names = jax_cpu.tensors(sample, "float64"), sample.tensors
    function = function_of(jax_cpu, spec, sample, inputs, names)
    single = [inputs[name] for name in names]
    stacked = [jax.numpy.stack([x, x[::-1] if x.ndim and x.dtype.kind == "f" else x]) for x in single]
    for axes in ([0] * len(names), [0, *[None] * (len(names) - 1)]):
        given = [x if axis is None else y for x, y, axis in zip(single, stacked, axes, strict=True)]
        got = jax.tree.leaves(jax.jit(jax.vmap(function, in_axes=axes))(*given))
        for i in range(SIZE):
            one = jax.tree.leaves(function(*(x if axis is None else x[i] for x, axis in zip(given, axes, strict=True))))
            for y, expected in zip(got, one, strict=True):
                if spec.rows_are_independent and spec.bits_follow_from_values:
                    assert_same_bits(np.asarray(y[i]), np.asarray(expected), str(axes))
                else:  # a few dozen roundings
                    np.testing.assert_allclose(y[i], expected, rtol=1e-12, atol=1e-12)


def test_one_call_for_rows_and_a_loop_for_parameters(jax_cpu):
    """Rows fold into one call. A mapped weight loops."""
    jax, fo = jax_cpu.jax, jax_cpu.functions
    x, weight = jax.numpy.ones((3, 2, 4)), jax.numpy.ones((3, 4))
    folded = str(jax.make_jaxpr(jax.vmap(fo.rms_norm, in_axes=(0, None)))(x, weight[0]))
    assert folded.count("fusedops_rms_norm") == 1 and "scan" not in folded
    assert "scan" in str(jax.make_jaxpr(jax.vmap(fo.rms_norm))(x, weight))


def test_an_eager_loop_is_compiled_once(jax_cpu):
    """Weights that are mapped make a loop. JAX's own would be compiled anew for each eager call."""
    jax, fo, np_ = jax_cpu.jax, jax_cpu.functions, jax_cpu.jax.numpy
    x, weight = np_.ones((3, 4)), np_.ones((3, 4))
    jax.vmap(fo.rms_norm)(x, weight)
    with pytest.MonkeyPatch.context() as patch:
        compiled = []
        patch.setattr("jax._src.compiler.compile_or_get_cached", lambda *_, **__: compiled.append(1) or 1 / 0)
        jax.vmap(fo.rms_norm)(x, weight)
    assert not compiled
