"""The optimizers of both packages."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.numerics import assert_same_bits, numpy_dtype
from tests.helpers.updates import arrays

SHAPES = ((33,), (), (5, 7), (2050,))


@pytest.mark.slow
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_thousand_steps(both_backends, dtype, amsgrad, random):
    """The same bits in both frameworks. There is no epsilon, which Keras adds in another place than PyTorch."""
    import keras

    import fusedops.tf.keras as fk
    from fusedops.torch import optim

    torch, tf = both_backends
    starts = arrays(SHAPES, dtype, random)
    params = [torch.torch.nn.Parameter(torch.from_numpy(x)) for x in starts]
    variables = [keras.Variable(tf.from_numpy(x), dtype=dtype) for x in starts]
    lr, decay, beta1, beta2 = 2.0**-6, 0.125, 0.875, 0.75
    ours = optim.AdamW(params, lr, (beta1, beta2), eps=0, weight_decay=decay, amsgrad=amsgrad)
    theirs = fk.optimizers.AdamW(lr, decay, beta1, beta2, epsilon=0.0, amsgrad=amsgrad)
    theirs.build(variables)
    apply = tf.tf.function(lambda grads: theirs.apply(grads, variables))
    for step in range(1000):
        grads = arrays(SHAPES, dtype, np.random.default_rng(step))
        for p, grad in zip(params, grads, strict=True):
            p.grad = torch.from_numpy(grad)
        ours.step()
        apply([tf.from_numpy(grad) for grad in grads])
    for p, variable, start in zip(params, variables, starts, strict=True):
        assert_same_bits(torch.to_numpy(p), variable.numpy())
        assert np.isfinite(variable.numpy().astype("float64")).all()
        assert not np.array_equal(variable.numpy(), start.astype(numpy_dtype(dtype)))
