"""Adds the operators of tests/programs/added_operators.cpp to PyTorch's binding, and checks that they behave like any
other: prints the failed checks with their errors, as JSON. The argument: the library."""

from __future__ import annotations

import ctypes
import json
import sys

import torch

import fusedops.torch as fo
from fusedops.gradients.registry import gradient
from fusedops.torch import internals, library
from fusedops.torch.operators import OPERATORS as ops
from tests.helpers.checking import check, failed, names_added_in_threads, refused

(LIBRARY,) = map(ctypes.CDLL, sys.argv[1:])


@gradient("triple_backward")
def _triple_backward(f, c, gdx):
    return {"dy": lambda: f.triple_backward(gdx, factor=c.factor)}


@gradient("weigh_backward", saves=("s", "x", "dy"))
def _weigh_backward(f, c, gds, gdx):
    def of_dy():
        product = None if gdx is None else f.weigh(None, gdx, c.s)
        return product if gds is None else f.weigh(product, c.x, gds)

    gradients = {"dy": of_dy}
    if gds is not None:
        gradients["x"] = lambda: f.weigh(None, c.dy, gds)
    if gdx is not None:
        gradients["s"] = lambda: f.weigh_backward(c.s, c.dy, gdx)[0]
    return gradients


def random(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, dtype=dtype, generator=generator, requires_grad=True)


def plain_weigh(bias, x, s):
    return x * s + (0 if bias is None else bias)


@check
def added_while_in_use():
    """Several threads call it while one adds it."""

    def use():
        fo.relu(torch.ones(3, requires_grad=True)).sum().backward()

    names = names_added_in_threads(library, LIBRARY.fusedops_library, meanwhile=use)
    assert names == ["triple", "triple_backward", "weigh", "weigh_backward", "frozen"], names
    library.added()


@check
def eager():
    x = random(3, 5)
    torch.testing.assert_close(ops.triple(x), 3 * x)
    torch.testing.assert_close(ops.triple(x, factor=-2.0), -2 * x)
    torch.testing.assert_close(torch.ops.fusedops.triple(x), 3 * x)
    torch.testing.assert_close(ops.weigh(None, x, 2.0), 2 * x)
    torch.testing.assert_close(ops.weigh(x, x, random(5)), x * random(5) + x)
    assert not hasattr(fo, "triple")


@check
def errors():
    x = random(3, 5)
    for call, sentence in (
        (lambda: ops.triple(3), "triple: x must be a tensor; got int"),
        (lambda: ops.triple(x, factor="3"), "triple: factor must be a number; got '3'"),
        (lambda: ops.triple(x > 0), "triple: x must be float64, float32, float16 or bfloat16; got bool"),
        (lambda: ops.weigh(None, x, random(4)), "weigh: s must broadcast to x's shape, [3, 5]; got [4]"),
    ):
        with refused((TypeError, RuntimeError), f"fusedops.{sentence}"):
            call()


@check
def gradients():
    x, bias, upstream = random(3, 5), random(3, 5, seed=1), random(3, 5, seed=2).detach()
    for s in (random(1), random(5), random(3, 1), random(3, 5, seed=3)):
        got = torch.autograd.grad(ops.weigh(bias, x, s), (bias, x, s), upstream)
        expected = torch.autograd.grad(plain_weigh(bias, x, s), (bias, x, s), upstream)
        torch.testing.assert_close(got, expected)
    (got,) = torch.autograd.grad(ops.triple(x, factor=0.5), x, upstream)
    torch.testing.assert_close(got, 0.5 * upstream)


@check
def second_derivatives():
    x = random(3, 5)
    assert torch.autograd.gradcheck(ops.triple, (x,), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(ops.triple, (x,))
    inputs = (random(2, 3), random(2, 3, seed=1), random(3))
    assert torch.autograd.gradcheck(ops.weigh, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(ops.weigh, inputs)


@check
def no_derivative():
    """An operator for which no derivative is declared."""
    x = random(3)
    torch.testing.assert_close(ops.frozen(x), 3 * x)
    with refused(RuntimeError, "fusedops.frozen: x has no gradient; detach it"):
        ops.frozen(x).sum().backward()


@check
def forward_mode():
    x, s = random(3, 5).detach(), random(5).detach()
    got = torch.func.jvp(lambda x, s: ops.weigh(None, x, s), (x, s), (x, s))
    torch.testing.assert_close(got, (x * s, 2 * x * s))


@check
def transforms():
    for dims, x_shape, s_shape in (
        ((0, None), (4, 3, 5), (5,)),
        ((1, None), (3, 4, 5), (3, 1)),
        ((None, 0), (3, 5), (4, 5)),
        ((0, 1), (4, 3, 5), (5, 4)),
        ((0, None), (4, 2, 3, 5), (2, 3, 5)),
    ):
        x, s = random(*x_shape).detach(), random(*s_shape).detach()
        function = torch.func.grad(lambda x, s: ops.weigh(None, x, s).sin().sum(), argnums=(0, 1))
        plain = torch.func.grad(lambda x, s: plain_weigh(None, x, s).sin().sum(), argnums=(0, 1))
        torch.testing.assert_close(torch.vmap(function, dims)(x, s), torch.vmap(plain, dims)(x, s))
    hessian = torch.func.hessian(lambda x: ops.triple(x).square().sum())(random(5).detach())
    torch.testing.assert_close(hessian, 18 * torch.eye(5, dtype=torch.float64))


@check
def opcheck():
    x, bias = random(3, 5), random(3, 5, seed=1)
    for op, arguments in (
        (torch.ops.fusedops.triple.default, (x,)),
        (torch.ops.fusedops.triple_backward.default, (x,)),
        (torch.ops.fusedops.weigh.default, (bias, x, random(5))),
        (torch.ops.fusedops.weigh.default, (None, x, None, 2.5)),
    ):
        assert set(torch.library.opcheck(op, arguments).values()) == {"SUCCESS"}


@check
def fake():
    y = ops.weigh(None, torch.empty(3, 5, device="meta"), torch.empty(5, device="meta"))
    assert (y.shape, y.device.type) == ((3, 5), "meta")


@check
def any_names():
    """Names that generated Python code uses. An undeclared name is refused there, too."""
    library.add(LIBRARY.fusedops_names)
    x = random(3, 5)
    y = ops.names(x, x.detach(), map=0.5)
    torch.testing.assert_close(y, 0.5 * x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, 0.5))
    with refused(TypeError, "names() got an unexpected keyword argument 'mpa'"):
        ops.names(x, x, mpa=0.5)


@check
def compiled():
    def loss(x, s):
        return ops.weigh(x, ops.triple(x), s).sin().sum()

    function = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    for size in (3, 4):
        x, s = random(size, 5), random(5)
        got, expected = function(x, s), loss(x, s)
        torch.testing.assert_close(got, expected)
        torch.testing.assert_close(torch.autograd.grad(got, (x, s)), torch.autograd.grad(expected, (x, s)))

    numbers = torch.compile(lambda x, s: ops.weigh(None, x, s), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(numbers(x, 2.5), 2.5 * x)


@check
def compiled_autograd():
    x, s = random(3, 5), random(5)
    torch._dynamo.config.compiled_autograd = True
    try:
        loss = torch.compile(lambda: ops.weigh(x, ops.triple(x), s).sum().backward(), backend="aot_eager")
        loss()
    finally:
        torch._dynamo.config.compiled_autograd = False
    torch.testing.assert_close((x.grad, s.grad), ((3 * s + 1).expand(3, 5), (3 * x).sum(0)))


@internals.before_tracing
def quadruple():
    if not hasattr(ops, "quadruple"):
        library.add(LIBRARY.fusedops_quadruple)
    return "quadruple"


@check
def added_while_compiled():
    """A function that adds an operator is called once, while the compiler traces."""

    def function(x):
        return ops.weigh(None, getattr(ops, quadruple())(x), 2.0)

    x = random(3, 5)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        y = compiled(x)
        torch.testing.assert_close(y, 8 * x)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], torch.full_like(x, 8))


print(json.dumps(failed()))
