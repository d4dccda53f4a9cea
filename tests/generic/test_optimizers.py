"""The optimizers of both packages: every option with every kind of step, and the same bits in both packages."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from functools import cache

import numpy as np
import pytest

from tests.conftest import require
from tests.helpers.numerics import assert_same_bits, numpy_dtype
from tests.helpers.optimizers import TRAININGS, assert_as_good
from tests.helpers.updates import arrays

OURS = {"torch": "fusedops.torch.optim", "tf": "fusedops.tf.keras.optimizers"}
THEIRS = {"torch": "torch.optim", "tf": "keras.optimizers"}


def cases(framework):
    """Pairs of an optimizer and one of its options."""
    options = [(kind, option) for kind, some in TRAININGS[framework][1].items() for option in some]
    return pytest.mark.parametrize(("kind", "option"), options, ids=str)


def ways(framework):
    names = [way for way in TRAININGS[framework][0].ways if way != "eager"]
    return pytest.mark.parametrize("way", [pytest.param(x, marks=[pytest.mark.slow] * (x == "xla")) for x in names])


# Keras warns; its option for it is tested.
no_gradients = pytest.mark.filterwarnings("ignore:Gradients do not exist")


def train(backend, modules, kind, arguments, dtype, way="eager"):
    training, _ = TRAININGS[backend.framework]
    return training(backend, importlib.import_module(modules[backend.framework]), kind, arguments, dtype, way).run()


@cache
def references(backend, kind, option):
    """Results of the framework's own optimizer, in float32 and in float64."""
    return [train(backend, THEIRS, kind, option.all, dtype) for dtype in ("float32", "float64")]


@cache
def eager(backend, kind, option):
    """Results of the fusedops optimizer in eager code."""
    return train(backend, OURS, kind, option.all, option.dtype)


def assert_option(backend, kind, option):
    """The option gives the result of the framework's own optimizer, and another one than the default."""
    theirs, exact = references(backend, kind, option)
    assert_as_good(eager(backend, kind, option), theirs, exact, "float32")
    without = train(backend, OURS, kind, option.without, option.dtype)
    if len(without) == len(exact):  # moving averages are further results
        with pytest.raises(AssertionError) if option.has_effect else contextlib.nullcontext():
            assert_as_good(without, theirs, exact, "float32")


@cases("torch")
def test_options_match_torch(torch_backend, kind, option):
    assert_option(torch_backend, kind, option)


@cases("tf")
@no_gradients
def test_options_match_keras(tf_backend, keras, kind, option):
    assert_option(tf_backend, kind, option)


@cases("torch")
@ways("torch")
def test_every_kind_of_step_has_the_same_bits_in_torch(torch_backend, kind, option, way):
    """An option gives the same bits with every kind of step."""
    if way == "captured" and torch_backend.device == "cpu":
        pytest.skip("GPU: none")
    if way == "captured" and not option.is_captured:
        pytest.skip("CUDA graphs have no such step")
    found = train(torch_backend, OURS, kind, option.all, option.dtype, way)
    for x, y in zip(found, eager(torch_backend, kind, option), strict=True):
        assert_same_bits(x, y)


@cases("tf")
@ways("tf")
@no_gradients
def test_every_kind_of_step_matches_keras(tf_backend, keras, kind, option, way):
    """An option gives the result of Keras's own optimizer with every kind of step."""
    found = train(tf_backend, OURS, kind, option.all, option.dtype, way)
    assert_as_good(found, *references(tf_backend, kind, option), "float32")


@pytest.mark.parametrize("framework", TRAININGS)
def test_every_argument_is_tested(framework):
    """Each argument of the frameworks' constructors and of fusedops's is among the tested options."""
    require(framework, "cpu")
    for kind, options in TRAININGS[framework][1].items():
        given = {name for option in options for name in option.all.keys() | option.all.get("_second", {}).keys()}
        modules = (importlib.import_module(some[framework]) for some in (OURS, THEIRS))
        constructors = [getattr(module, kind).__init__ for module in modules]
        found = {name for one in constructors for name in inspect.signature(one).parameters}
        assert found - given <= {"self", "params", "args", "kwargs", "name"}, kind


SHAPES = ((33,), (), (5, 7), (2050,))


@pytest.mark.frameworks("torch", "tf")
@pytest.mark.slow
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_thousand_steps(both_backends, dtype, amsgrad, random):
    """The same bits in both frameworks. Epsilon is zero, since Keras and PyTorch add it in different places."""
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
