"""Every form known to fusedops.torch.convert gives the same results: tests run the catalogue's own code."""

from __future__ import annotations

import importlib.util
import inspect
from types import FunctionType

import pytest

pytest.importorskip("fusedops.torch")

from fusedops.torch.conversion.hf.forms import all_forms
from fusedops.torch.conversion.hf.forms.rotary import KNOWN
from tests.helpers.converting import converted

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
SIZE = 16


def of(file):
    """The forms with a mixin in this file whose code runs on its own, without `super()`."""
    forms = [
        form for form in all_forms(HAS_TRANSFORMERS) if form.mixin.startswith(f"{file}.") and form.method == "forward"
    ]
    return {form.__name__: form for form in forms if "__class__" not in form.forward.__code__.co_freevars}


def source_lines(form):
    return inspect.getsource(form).splitlines()


@pytest.fixture
def torch(torch_backend, transformers):
    torch_backend.torch.manual_seed(0)
    with torch_backend.torch.device(torch_backend.device):
        yield torch_backend.torch


@pytest.fixture
def made(torch):
    """A module with the code of a form, and these attributes."""

    def make(form, **attributes):
        methods = {name: value for name, value in vars(form).items() if isinstance(value, FunctionType)}
        module = type("Mine", (torch.nn.Module,), methods)()
        for name, value in attributes.items():
            setattr(module, name, value)
        return module.eval()

    return make


def gradients(torch, module, inputs):
    inputs = [x.detach().requires_grad_() for x in inputs]
    module.zero_grad()
    result = module(*inputs)
    result.backward(torch.linspace(-1, 2, result.numel()).view_as(result).to(result.dtype))
    found = [result.detach(), *(x.grad for x in inputs)]
    return found + [weight.grad.clone() for weight in module.parameters() if weight.grad is not None]


def assert_same(torch, module, inputs, eps, fo):
    """The results have the same dtype, and differ by a few roundings of the largest result."""
    plain = gradients(torch, module, inputs)
    converted(fo, module, type(module).__name__)
    for got, expected in zip(gradients(torch, module, inputs), plain, strict=True):
        assert got.dtype is expected.dtype
        torch.testing.assert_close(got, expected, rtol=0, atol=16 * eps * max(1.0, expected.abs().max().item()))


@pytest.mark.parametrize(
    "of_input, of_weight", [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")]
)
@pytest.mark.parametrize("name", of("norms"))
def test_norms(torch_backend, torch, made, name, of_input, of_weight):
    form = of("norms")[name]
    rows = {
        role: torch.nn.Parameter(torch.linspace(-1, 2, SIZE, dtype=getattr(torch, of_weight)))
        for role in ("weight", "bias")
        if any(f"self.{role}" in line for line in source_lines(form))
    }
    options = {"eps": 1e-3, "with_scale": True, "group_size": 8, "activation": "silu", "shape": (SIZE,)}
    module = made(form, **rows, **options)
    x = torch.randn(2, 3, SIZE, dtype=getattr(torch, of_input))
    inputs = [x, torch.randn_like(x)] if "gate" in form.forward.__code__.co_varnames else [x]
    eps = torch.finfo(getattr(torch, of_input)).eps
    try:
        module(*inputs)
    except RuntimeError as error:  # torch's layer_norm refuses two dtypes on a GPU
        pytest.skip(f"the module itself does not take them: {error}")
    assert_same(torch, module, inputs, eps, torch_backend.functions)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", of("activations"))
def test_activations(torch_backend, torch, made, name, dtype):
    x = torch.randn(2, 3, SIZE, dtype=getattr(torch, dtype))
    assert_same(torch, made(of("activations")[name]), [x], torch.finfo(x.dtype).eps, torch_backend.functions)


MLPS = {**of("mlp"), **of("dense")}
DROPPED_BY_FUNCTION = [name for name, form in MLPS.items() if form.mixin in ("dense.DroppedDense", "mlp.DroppedMLP")]


@pytest.fixture
def mlp(torch, made):
    """A module with the code of a form, and its inputs."""

    def make(name):
        form, lines = MLPS[name], source_lines(MLPS[name])
        parts = {"dropout": torch.nn.Dropout(), "norm": torch.nn.LayerNorm(SIZE), "activation": torch.nn.SiLU()}
        parts |= {"middle": torch.nn.GELU(), "limit": 0.5, "gate_scale": 1.5, "scale": 0.7}
        parts |= {role: torch.nn.Linear(SIZE, SIZE) for role in ("gate", "up", "down", "dense", "projection", "last")}
        parts |= {"packed": torch.nn.Linear(SIZE, 2 * SIZE), "activation_dropout": 0.5}
        if name in DROPPED_BY_FUNCTION:
            parts["dropout"] = 0.5
        used = {role: part for role, part in parts.items() if any(f"self.{role}" in line for line in lines)}
        count = 2 if form.mixin == "mlp.GatedResidual" else 1
        return made(form, **used), [torch.randn(2, 3, SIZE) for _ in range(count)]

    return make


@pytest.mark.parametrize("name", MLPS)
def test_mlps(torch_backend, torch, mlp, name):
    module, inputs = mlp(name)
    assert_same(torch, module, inputs, torch.finfo(torch.float32).eps, torch_backend.functions)


@pytest.mark.parametrize("name", DROPPED_BY_FUNCTION)
def test_functions_drop_as_before(torch_backend, torch, mlp, name):
    """In training, with the same torch seed."""
    module, inputs = mlp(name)
    module.train().register_forward_pre_hook(lambda *_: torch.manual_seed(0) and None)
    assert (module(*inputs) == 0).any()
    assert_same(torch, module, inputs, torch.finfo(torch.float32).eps, torch_backend.functions)


def angles(torch, rotation, dtype, turned):
    """cos and sin as arguments of the function."""
    once = torch.randn(1, 5, turned // 2, dtype=torch.float64)
    if rotation.angles == "pairs":
        once = once.repeat_interleave(2, -1)
    elif rotation.angles != "once":
        once = torch.cat((once, once), -1)
    if rotation.call.startswith("complex"):
        return (torch.polar(torch.ones_like(once), once).to(torch.complex64),)
    if rotation.call in ("vision", "patches", "triple_at_positions"):
        once = once[0]
    tables = once.cos().to(dtype), once.sin().to(dtype)
    if rotation.call == "triple_at_positions":
        return (*tables, torch.tensor([[4, 3, 2, 1, 0], [0, 1, 2, 3, 4]]))
    return tables[::-1] if rotation.call == "sine_first" else tables


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("function", KNOWN, ids=[rotation.like for rotation in KNOWN.values()])
def test_rotations(torch_backend, torch, function, dtype):
    from fusedops.torch.conversion.hf.rotary import fused

    rotation, dtype = KNOWN[function], getattr(torch, dtype)
    given = angles(torch, rotation, dtype, 8 if rotation.partial or rotation.call == "single_at_end" else SIZE)
    shape = {"vision": (5, 3, SIZE), "patches": (2, 3, 7, SIZE)}.get(rotation.call, (2, 3, 5, SIZE))
    if rotation.call in ("sine_first", "complex_heads_last", "complex_image"):
        shape = (2, 5, 3, SIZE)
    count = {"single": 1, "single_at_end": 1, "sine_first": 1, "triple_at_positions": 3}.get(rotation.call, 2)
    tensors = [torch.randn(shape, dtype=dtype) for _ in range(count)]
    kernels = []

    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, called, types, args=(), kwargs=None):
            kernels.append(str(called))
            return called(*args, **(kwargs or {}))

    with Seen():
        got = fused(function)(*tensors, *given)
    assert any("fusedops" in name for name in kernels)
    expected = function(*tensors, *given)
    for x, y in zip(*((value if isinstance(value, tuple) else (value,)) for value in (got, expected)), strict=True):
        assert x.dtype is y.dtype
        torch.testing.assert_close(x, y, rtol=0, atol=8 * torch.finfo(dtype).eps * y.abs().max().item())


def tables_of(torch):
    """The fused rotation of "halves", and its arguments: q, k, cos and sin."""
    from fusedops.torch.conversion.hf.rotary import fused

    function, rotation = next(item for item in KNOWN.items() if item[1].call == "pair" and item[1].angles == "halves")
    q, k = torch.randn(2, 2, 3, 5, SIZE)
    return function, fused(function), (q, k, *angles(torch, rotation, torch.float32, SIZE))


def test_angles_are_converted_once(torch_backend, torch):
    function, rotate, (q, k, cos, sin) = tables_of(torch)
    copies = []

    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, called, types, args=(), kwargs=None):
            copies.extend([called] * (called is torch.Tensor.clone))
            return called(*args, **(kwargs or {}))

    def check(expected):
        with Seen():
            got = rotate(q, k, cos, sin)
        torch.testing.assert_close(got, function(q, k, cos, sin), rtol=0, atol=1e-5)
        assert len(copies) == expected

    check(2)
    check(2)
    sin.neg_()
    check(3)
    cos.neg_()
    torch.func.grad(lambda q: rotate(q, k, cos, sin)[0].sum())(q)  # keeps no tensors that its transform has wrapped
    check(4)


def test_angles_within_a_graph(torch_gpu, transformers):
    torch = torch_gpu.torch
    with torch.device("cuda"):
        function, rotate, (q, k, cos, sin) = tables_of(torch)
    rotate(q, k, cos, sin)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = rotate(q, k, cos, sin)
    for table in (cos, sin):
        table.neg_()
    graph.replay()
    torch.testing.assert_close(got, function(q, k, cos, sin), rtol=0, atol=1e-5)
