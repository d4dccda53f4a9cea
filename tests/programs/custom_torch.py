"""Run by tests/custom/test_operators.py: loads the guide's operator and another one into PyTorch, and prints the errors
of each use. Arguments: a folder for sources, the device."""

import torch
from custom_operators import DEVICE, FOLDER, SCALED, SQUARE, check, check_module, of_guide, of_scaled, run

import fusedops.torch as fo
from tests.helpers.checking import refused

guide = fo.load("guide", SQUARE, gradients=of_guide())
mine = fo.load("mine", SCALED, gradients={"scaled": of_scaled})


def random(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, dtype=dtype, generator=generator).to(DEVICE).requires_grad_()


@check
def eager():
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        x = random(3, 5, dtype=dtype)
        torch.testing.assert_close(guide.square(x), (x.double() * x.double()).to(dtype))
    x = random(3, 5)
    assert torch.equal(torch.ops.fusedops.square(x), guide.square(x))


@check
def gradients():
    x, dy = random(3, 5), random(3, 5, seed=1).detach()
    torch.testing.assert_close(torch.autograd.grad(guide.square(x), x, dy)[0], 2 * x * dy)
    assert torch.autograd.gradcheck(guide.square, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(guide.square, (x,))


@check
def transforms():
    x = random(4, 5).detach()
    hessian = torch.func.vmap(torch.func.hessian(lambda x: guide.square(x).sum()))(x)
    torch.testing.assert_close(hessian, 2 * torch.eye(5, dtype=x.dtype, device=x.device).expand(4, 5, 5))


@check
def compiled():
    function = torch.compile(lambda x: guide.square(x.sin()).sum(), fullgraph=True, backend="aot_eager", dynamic=True)
    for size in (3, 4):
        x = random(size, 5)
        y = function(x)
        torch.testing.assert_close(y, x.sin().square().sum())
        torch.testing.assert_close(torch.autograd.grad(y, x)[0], 2 * x.sin() * x.cos())


@check
def opcheck():
    done = torch.library.opcheck(torch.ops.fusedops.square.default, (random(3, 5),))
    assert set(done.values()) == {"SUCCESS"}, done


@check
def derivative_as_a_formula():
    if DEVICE == "cuda":
        return  # it has no kernel
    x, bias = random(3, 5), random(3, 5, seed=1)
    torch.testing.assert_close(mine.scaled(x), 2 * x)
    torch.testing.assert_close(mine.scaled(x, bias, factor=0.5), 0.5 * x + bias)
    assert torch.autograd.gradcheck(lambda *inputs: mine.scaled(*inputs, factor=3.0), (x, bias), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(mine.scaled, (x, bias))
    function = torch.compile(lambda x: mine.scaled(x, factor=3.0), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(function(x).sum(), x)[0], torch.full_like(x, 3))


@check
def no_kernel_for_gpus():
    if DEVICE == "cpu":
        return
    try:
        mine.scaled(random(3))
    except RuntimeError as error:
        assert "scaled was called on a GPU, and its library has no CUDA kernel of it" in str(error), error
    else:
        raise AssertionError("no error")


@check
def module():
    check_module(fo, guide, mine, "(x, bias=None, /, *, factor=2.0)")
    from fusedops.torch.guide import square

    assert square is guide.square


@check
def again():
    """The same sources in another folder and under another name, and other sources."""
    assert fo.load("guide", SQUARE) is guide
    assert fo.load("guide", SQUARE, gradients=of_guide()) is guide
    copy = FOLDER / "copy.cpp"
    copy.write_bytes(SCALED.read_bytes())
    assert fo.load("copied", [copy]).scaled is mine.scaled
    other = FOLDER / "scaled.cpp"
    other.write_text(SCALED.read_text() + "// changed\n")
    for call, sentence in (
        (lambda: fo.load("other", other), "fusedops: an operator is already named like scaled"),
        (
            lambda: fo.load("mine", other),
            "fusedops.load: name must be new; got 'mine', that of a library of other sources",
        ),
        (
            lambda: fo.load("mine", SCALED, gradients={"scaled": lambda f, c, dy, dcopy: {}}),
            "fusedops.load: gradients must give scaled the formula with which this process has loaded it; "
            "got another one",
        ),
    ):
        with refused(ValueError, sentence):
            call()
    assert not hasattr(fo, "other")
    x = random(3)
    if DEVICE == "cpu":
        torch.testing.assert_close(torch.autograd.grad(mine.scaled(x).sum(), x)[0], torch.full_like(x, 2))


run()
