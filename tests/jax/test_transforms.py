"""JAX: transforms of operators equal those of plain formulas, to any order."""

from __future__ import annotations

import numpy as np
import pytest

from tests.specifications import SPECIFICATIONS

# A few hundred roundings of 2^-53, of values up to 100.
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def operators(jax, fo):
    """Functions of a matrix [3, 5] with the formulas that they compute. Each has another kind of derivative."""
    np_, square = jax.numpy, jax.numpy.eye(5) + 0.1

    def attention(x):
        return fo.attention(*[x[..., None, :]] * 3, causal=True)[..., 0, :]

    def plain_attention(x):
        scores = x @ np_.swapaxes(x, -1, -2) / 5**0.5
        visible = np_.tril(np_.ones(scores.shape[-2:], bool))
        return jax.nn.softmax(np_.where(visible, scores, -np_.inf)) @ x

    return {
        "rms_norm": (fo.rms_norm, lambda x: x / np_.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)),
        "softmax": (lambda x: fo.softmax(x, scale=0.5), lambda x: jax.nn.softmax(0.5 * x)),
        "linear": (lambda x: fo.linear(x, square, activation="silu"), lambda x: jax.nn.silu(x @ square.T)),
        "attention": (attention, plain_attention),
        "scale": (lambda x: fo.scale(x, x.sum()), lambda x: x * x.sum()),
        "expression": (fo.elementwise("x * sin(x)", name="wave"), lambda x: x * np_.sin(x)),
    }


NAMES = ("rms_norm", "softmax", "linear", "attention", "scale", "expression")


def transforms(jax, x, v):
    """Functions of a function of a matrix."""
    np_ = jax.numpy

    def total(f):
        return lambda x: (np_.sin(f(x)) * x).sum()

    def scanned(f):
        return lambda x: jax.lax.scan(lambda c, _: (f(c) + c, None), x, None, 2)[0].sum()

    return {
        "grad": lambda f: jax.grad(total(f))(x),
        "jvp": lambda f: jax.jvp(f, (x,), (v,))[1],
        "linearize": lambda f: jax.linearize(f, x)[1](v),
        "hessian": lambda f: jax.hessian(total(f))(x),
        "reverse over reverse": lambda f: jax.grad(lambda x: (jax.grad(total(f))(x) ** 2).sum())(x),
        "reverse over forward": lambda f: jax.grad(lambda x: (jax.jvp(f, (x,), (v,))[1] ** 2).sum())(x),
        "vmap": lambda f: jax.vmap(f)(np_.stack([x, v])),
        "gradient of vmap": lambda f: jax.grad(lambda y: (jax.vmap(f)(y) ** 2).sum())(np_.stack([x, v])),
        "vmap of jvp": lambda f: jax.vmap(lambda a, b: jax.jvp(f, (a,), (b,))[1])(np_.stack([x, v]), np_.stack([v, x])),
        "checkpoint": lambda f: jax.grad(jax.checkpoint(total(f)))(x),
        "scan": lambda f: jax.grad(scanned(f))(x),
    }


@pytest.mark.parametrize("name", NAMES)
def test_transforms(jax_cpu, name, random):
    """All within one compiled function: XLA compiles each operator of an eager call on its own."""
    jax = jax_cpu.jax
    x, v = (jax_cpu.tensor(random.normal(size=(3, 5)), "float64") for _ in range(2))
    ours, plain = operators(jax, jax_cpu.functions)[name]

    def of(f):
        return jax.jit(lambda x, v: {key: run(f) for key, run in transforms(jax, x, v).items()})(x, v)

    got, expected = of(ours), of(plain)
    for key, value in expected.items():
        np.testing.assert_allclose(got[key], value, **CLOSE, err_msg=key)


@pytest.mark.parametrize("spec", SPECIFICATIONS, ids=str)
def test_second_order(jax_cpu, spec, random):
    """Forward and reverse mode over each other give v · H w of every operator, which is that of gradients beside x.

    All derivatives are in one compiled function. The step balances the rounding of differences, about 2^-53 / step, and
    the neglected terms, about step²: both are near 2^-35, and values are sums of up to a few thousand.
    """
    jax, np_ = jax_cpu.jax, jax_cpu.jax.numpy
    sample, step = spec.sample((3, 4), random), 2.0**-18
    inputs = jax_cpu.tensors(sample, "float64")
    wanted = [name for name in spec.differentiable(sample) if inputs[name].dtype == "float64"]
    x = [inputs[name] for name in wanted]
    v, w = ([jax_cpu.tensor(random.normal(size=each.shape), "float64") for each in x] for _ in range(2))

    def total(x):
        outputs = jax_cpu.call(spec.name, {**inputs, **dict(zip(wanted, x, strict=True))}, sample.options)
        return sum(np_.sin(y).sum() for y in outputs if np_.issubdtype(y.dtype, np_.floating))

    def dot(a, b):
        return sum(map(np_.vdot, a, b))

    def along(f, v):
        return lambda x: jax.jvp(f, (x,), (v,))[1]

    gradient = jax.grad(total)

    def combinations(x):
        beside = ([a + sign * step * b for a, b in zip(x, w, strict=True)] for sign in (1, -1))
        above, below = (dot(gradient(each), v) for each in beside)
        return {
            "differences": (above - below) / (2 * step),
            "forward over reverse": dot(along(gradient, w)(x), v),
            "reverse over forward": dot(jax.grad(along(total, v))(x), w),
            "reverse over reverse": dot(jax.grad(lambda x: dot(gradient(x), v))(x), w),
            "forward over forward": along(along(total, v), w)(x),
        }

    found = jax.jit(combinations)(x)
    for name, value in found.items():
        limit = 1e-6 if name == "differences" else 1e-9
        expected = found["reverse over reverse"]
        np.testing.assert_allclose(value, expected, rtol=limit, atol=limit, err_msg=name)


@pytest.mark.parametrize("count", [5, 6])
def test_forward_over_forward_of_many_inputs(jax_cpu, count, random):
    """It calls the third derivative. That of five inputs has 17 inputs and 11 results; six are refused."""
    jax, fo, np_ = jax_cpu.jax, jax_cpu.functions, jax_cpu.jax.numpy
    names = "abcdfg"[:count]
    product = fo.elementwise(" * ".join(f"sin({name})" for name in names))
    x, v, w = (tuple(jax_cpu.tensor(random.normal(size=3), "float64") for _ in names) for _ in range(3))

    def twice(f):
        return jax.jvp(lambda *x: jax.jvp(f, x, v)[1], x, w)[1]

    if count > 5:
        with pytest.raises(ValueError, match="a derivative must have at most 24 inputs; got more"):
            twice(product)
    else:
        plain = twice(lambda *x: np_.prod(np_.sin(np_.stack(x)), 0))
        np.testing.assert_allclose(twice(product), plain, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_transposes_of_derivatives(jax_cpu, name, random):
    """A derivative's derivative is linear in the first one's tangent, or upstream gradient, and can be transposed."""
    jax = jax_cpu.jax
    x, v, w = (jax_cpu.tensor(random.normal(size=(3, 5)), "float64") for _ in range(3))

    def transposes(f, x, v, w):
        def of_tangent(t):
            return jax.jvp(lambda x: jax.linearize(f, x)[1](t), (x,), (v,))[1]

        def of_upstream(dy):
            return jax.jvp(lambda x: jax.vjp(f, x)[1](dy)[0], (x,), (v,))[1]

        return [jax.linear_transpose(each, w)(w)[0] for each in (of_tangent, of_upstream)]

    found, expected = (
        jax.jit(lambda *x, f=f: transposes(f, *x))(x, v, w) for f in operators(jax, jax_cpu.functions)[name]
    )
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_derivatives_without_rank_promotion(jax_cpu):
    """A user may forbid that jax.numpy adds dimensions. The formulas of derivatives do it, as of a norm's weight."""
    jax, fo = jax_cpu.jax, jax_cpu.functions
    x, weight = jax.numpy.ones((2, 4)), jax.numpy.ones(4)
    with jax.numpy_rank_promotion("raise"):
        assert jax.hessian(lambda x: fo.rms_norm(x, weight).sum())(x).shape == (2, 4, 2, 4)


def test_a_saved_tensor_is_read_only_if_a_transform_differentiates(jax_cpu):
    """Without a gradient `linear` keeps nothing for the backward: its second output is empty."""
    jax, fo = jax_cpu.jax, jax_cpu.functions
    x, weight = jax.numpy.ones((2, 3)), jax.numpy.ones((4, 3))

    def call(x):
        return fo.linear(x, weight, activation="gelu").sum()

    def shapes(function):
        for equation in jax.make_jaxpr(function)(x).eqns:
            if equation.primitive.name == "fusedops_linear":
                return [tuple(y.aval.shape) for y in equation.outvars]

    assert shapes(call) == [(2, 4), (0,)] and shapes(jax.grad(call)) == [(2, 4), (2, 4)]


def test_a_forward_keeps_gradients(jax_cpu, random):
    """Derivatives of any order read the gradients that the forward keeps: here that of x alone."""
    jax, fo = jax_cpu.jax, jax_cpu.functions
    x, weight = (jax_cpu.tensor(random.normal(size=(rows, 5)), "float64") for rows in (3, 4))
    labels = jax.numpy.arange(3)

    def loss(x, weight):
        return fo.linear_cross_entropy(x, weight, labels)

    def plain(x, weight):
        return -jax.numpy.take_along_axis(jax.nn.log_softmax(x @ weight.T), labels[:, None], 1).mean()

    kinds = {
        "grad": lambda f: jax.jit(jax.grad(f, (0, 1)))(x, weight),
        "jvp": lambda f: jax.jvp(f, (x, weight), (x, weight)),
        "hessian": lambda f: jax.hessian(f)(x, weight),
        "gradient of vmap": lambda f: jax.grad(lambda y: jax.vmap(f, (0, None))(y, weight).prod())(
            jax.numpy.stack([x, -x])
        ),
    }
    for name, of in kinds.items():
        for got, expected in zip(*(jax.tree.leaves(of(f)) for f in (loss, plain)), strict=True):
            np.testing.assert_allclose(got, expected, **CLOSE, err_msg=name)

    def kept(f):
        equations = jax.make_jaxpr(f)(x, weight).eqns
        (forward,) = (e for e in equations if e.primitive.name == "fusedops_linear_cross_entropy")
        return [y.aval.shape for y in forward.outvars[-3:]]

    assert [kept(loss), kept(jax.grad(loss))] == [[(0,), (0,), (0,)], [(3, 5), (0,), (0,)]]


@pytest.mark.parametrize("kind", ["float", "NumPy's number", "array"])
def test_derivatives_in_a_number(jax_cpu, kind, random):
    """JAX traces a number that is differentiated without making an array of it. So is the tangent of jax.jvp."""
    jax, fo, np_ = jax_cpu.jax, jax_cpu.functions, jax_cpu.jax.numpy
    x = jax_cpu.tensor(random.normal(size=(3, 4)), "float64")
    number = {"float": float, "NumPy's number": np.float64, "array": np_.float64}[kind]
    functions = {
        "product": (fo.elementwise("a * x"), lambda a, x: a * x),
        "exponential": (fo.elementwise("exp(a * x)"), lambda a, x: np_.exp(a * x)),
        "scale": (lambda a, x: fo.scale(x, a), lambda a, x: a * x),
        "axpby": (lambda a, x: fo.axpby(a, x, x), lambda a, x: a * x + x),
    }
    for name, pair in functions.items():

        def results(f):
            def total(a):
                return np_.sin(f(a, x)).sum()

            a, tangent = number(0.75), number(2)
            once = jax.grad(total)(a), jax.jit(jax.grad(total))(a), *jax.jvp(total, (a,), (tangent,))
            twice = jax.grad(jax.grad(total))(a), *jax.jvp(jax.grad(total), (a,), (tangent,))
            mapped = jax.vmap(jax.grad(total))(np_.arange(3.0))
            of_x = jax.jvp(lambda x: f(a, x), (x,), (np.ones((3, 4)),))[1]
            return [*once, *twice, *mapped, of_x, jax.grad(lambda a: jax.jvp(total, (a,), (tangent,))[1])(a)]

        for got, expected in zip(*map(results, pair), strict=True):
            np.testing.assert_allclose(got, expected, **CLOSE, err_msg=name)


def test_second_derivatives_of_a_limit(jax_cpu, random):
    """A limit that nothing reaches has no effect. XLA may compute a value again with another rounding, so a derivative
    that compares it with its clipped self, as that of jnp.clip does, loses terms."""
    jax, fo, np_ = jax_cpu.jax, jax_cpu.functions, jax_cpu.jax.numpy
    shapes = {"x": (4, 8), "weight": (4, 2), "gate_up": (7, 10, 8), "down": (7, 12, 5), "gate_up_bias": (7, 10)}
    given = {name: jax_cpu.tensor(random.normal(size=shape), "float64") for name, shape in shapes.items()}
    index = np_.array([[6, 0], [5, 3], [0, 3], [6, 7]])

    def second(limit):
        def total(given):
            return np_.sin(fo.experts(index=index, **given, limit=limit)).sum()

        return jax.jit(lambda given: jax.jvp(jax.grad(total), (given,), (given,))[1])(given)

    for got, expected in zip(*map(jax.tree.leaves, (second(1e3), second(0.0))), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_operators_without_a_gradient(jax_cpu):
    jax, fo = jax_cpu.jax, jax_cpu.functions
    x = jax.numpy.ones((2, 4))
    with pytest.raises(ValueError, match=r"fusedops\.accumulate_matmul: there is no gradient; give it jax\.lax\.stop"):
        jax.grad(lambda x: fo.accumulate_matmul(jax.numpy.ones((2, 2)), x, x, transpose_b=True).sum())(x)
    cos = jax.numpy.ones((2, 2))
    with pytest.raises(ValueError, match=r"fusedops\.rope: cos has no gradient; give it jax\.lax\.stop_gradient"):
        jax.grad(lambda cos: fo.rope(jax.numpy.ones((2, 1, 4)), cos, cos).sum())(cos)
