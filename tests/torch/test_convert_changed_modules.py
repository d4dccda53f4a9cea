"""fusedops.torch.convert of modules whose code is known, but which have a relevant addition."""

from __future__ import annotations

import dataclasses
import sys
import types

import pytest

pytest.importorskip("fusedops.torch")

import torch
from torch import nn
from torch.nn import functional

from fusedops.torch.conversion.hf.forms import mlps, norms, residual, rotary
from tests.helpers.converting import converted

PASSED = 0


class Norm(nn.Module):
    def __init__(self, size=8):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.linspace(0.5, 2, size)), nn.Parameter(torch.linspace(0, 1, size))
        self.eps = 1e-3

    _norm, forward = norms.GemmaRMSNorm._norm, norms.GemmaRMSNorm.forward


class LayerNorm(Norm):
    forward = norms.DebertaLayerNorm.forward


class Gated(nn.Module):
    def __init__(self, gates=8, act=None):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, gates), nn.Linear(8, 8), nn.Linear(8, 8)
        self.activation = act or nn.Sigmoid()

    forward = mlps.LlamaMLP.forward


@dataclasses.dataclass
class Unhashable:
    factor: float = 2.0

    def __call__(self, x):
        return self.factor * x


class Called(Norm):
    forward = Norm.forward

    def __call__(self, x):
        return 3 * super().__call__(x)


class Attention(nn.Linear):
    def forward(self, hidden_states, mask=None, **rest):
        return super().forward(hidden_states), mask


class Block(nn.Module):
    def __init__(self, norm=Norm):
        super().__init__()
        self.norm, self.attention = norm(), Attention(8, 8)
        self.norm_of_sum, self.mlp = norm(), nn.Linear(8, 8)

    def forward(self, hidden_states, mask=None, *others, **rest):
        residual = hidden_states
        hidden_states = self.norm(hidden_states)
        hidden_states, _ = self.attention(hidden_states=hidden_states, mask=mask, **rest)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.norm_of_sum(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


class BlockOfCalled(Block):
    def __init__(self):
        super().__init__(Called)

    forward = residual.LlamaDecoderLayer.forward


class Output(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.dropout, self.norm = nn.Linear(8, 8), nn.Identity(), nn.LayerNorm(8)

    forward = residual.BertOutput.forward


class WithRow(nn.Module):
    def __init__(self):
        super().__init__()
        self.output = Output()

    def forward(self, x):
        return self.output(x, x[:1, :1])


class Registered(type):
    names = frozenset()

    def __new__(cls, name, bases, members):
        if name in cls.names:
            raise KeyError(f"{name} is there already")
        cls.names |= {name}
        return super().__new__(cls, name, bases, members)


class RegisteredNorm(Norm, metaclass=Registered):
    forward = Norm.forward


rotated = next(function for function, rotation in rotary.KNOWN.items() if rotation.like == "Llama")


def angles(count, features):
    """Angles that do not occur twice; those of the first position are all 0."""
    return (torch.arange(count)[:, None] * torch.linspace(0, 1, features))[None]


class Counting(nn.Module):
    def forward(self, x):
        global PASSED
        PASSED += 1
        table = angles(x.shape[1], 4).repeat(1, 1, 2)
        return rotated(x[:, None], x[:, None], table.cos(), table.sin())[0] * PASSED


class OneAngleEach(nn.Module):
    def forward(self, x):
        table = angles(x.shape[1], 8).to(x.device)
        return rotated(x[:, None], x[:, None], table.cos(), table.sin())[0]


library = types.ModuleType("library")
library.F = functional


class ByALibrary(nn.Module):
    def forward(self, x):
        return library.F.softmax(x, dim=-1)


class TensorEps(nn.Module):
    def forward(self, x):
        return functional.rms_norm(x, (8,), None, torch.tensor(1e-3))


def with_one_weight():
    return Norm(size=1)


def with_an_own_method():
    module = Norm()
    module._norm = lambda x: x / 2
    return module


def with_two_dtypes():
    module = LayerNorm()
    module.bias = nn.Parameter(module.bias.double())
    return module


def with_one_gate():
    return Gated(gates=1)


def with_an_unhashable_activation():
    return Gated(act=Unhashable())


@pytest.mark.parametrize(
    "made",
    [
        with_one_weight,
        with_an_own_method,
        with_two_dtypes,
        with_one_gate,
        with_an_unhashable_activation,
        Block,
        BlockOfCalled,
        WithRow,
        RegisteredNorm,
        ByALibrary,
        TensorEps,
    ],
    ids=lambda made: made.__name__,
)
def test_a_changed_module_gives_the_same_results(torch_backend, made):
    torch.manual_seed(0)
    with torch.device(torch_backend.device):
        module, x = made(), torch.randn(2, 3, 8)
    plain = module(x)
    converted(torch_backend.functions, nn.Sequential(nn.LayerNorm(8), module), functions=True)
    torch.testing.assert_close(module(x), plain)


def test_a_forward_that_sets_a_global_variable_keeps_it(torch_cpu, capsys):
    module = torch_cpu.functions.convert(nn.Sequential(nn.LayerNorm(8), Counting()))
    assert "kept Counting '1': its forward sets a global variable" in capsys.readouterr().out
    before = PASSED
    module(torch.randn(2, 3, 8))
    assert before + 1 == PASSED


def test_zero_angles_of_the_first_position_do_not_count_as_repeated(torch_backend):
    with torch.device(torch_backend.device):
        module, x = OneAngleEach(), torch.randn(2, 3, 8)
    plain = module(x)
    converted(torch_backend.functions, module)
    assert "original" in vars(type(module))
    module(x[:, :1])
    torch.testing.assert_close(module(x), plain)


@pytest.mark.parametrize("other", [None, types.ModuleType("transformers")], ids=["none", "another"])
def test_without_transformers_under_its_name(torch_cpu, monkeypatch, other):
    from fusedops.torch.conversion import hf
    from fusedops.torch.conversion.hf import forms

    for name in [name for name in sys.modules if name.startswith(("transformers.", "fusedops.torch.conversion.hf."))]:
        if name.startswith("transformers.") or name.endswith((".loss", ".of_transformers", ".internals")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(hf, "loss", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", other)
    for cached in (forms.all_forms, hf._forms):
        cached.cache_clear()
    module = nn.Sequential(Norm(), ByALibrary())
    try:
        converted(torch_cpu.functions, module)
        assert "original" in vars(type(module[0]))
    finally:
        for cached in (forms.all_forms, hf._forms):
            cached.cache_clear()


def test_a_class_whose_code_is_in_no_module(torch_cpu):
    names = {}
    code = (
        "import torch\ndef same(x): return x\nclass Odd(torch.nn.Module):\n    def forward(self, x): return same(x)\n"
    )
    exec(code, names)
    names["Odd"].__module__ = None
    module = nn.Sequential(nn.LayerNorm(8), names["Odd"]())
    converted(torch_cpu.functions, module, functions=True)
    assert type(module[1]) is names["Odd"]


def test_a_forward_replaced_by_another_known_one(torch_cpu):
    kind, x = type("Exchanged", (LayerNorm,), {"forward": LayerNorm.forward}), torch.randn(2, 8)
    converted(torch_cpu.functions, kind())
    kind.forward = Norm.forward
    module = kind()
    plain = module(x)
    converted(torch_cpu.functions, module)
    assert "original" in vars(type(module))
    torch.testing.assert_close(module(x), plain)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_calls_that_an_operator_refuses_run_the_original_code(torch_backend, transformers):
    """Plain tensors are passed to the operator unchecked."""
    from fusedops.torch.conversion.hf import attention, dense
    from fusedops.torch.conversion.hf.residual import add_norm

    fo, device = torch_backend.functions, torch_backend.device
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 8, device=device), torch.randn(1, 1, 8, device=device)
    plain, norm = nn.LayerNorm(8, device=device), converted(fo, nn.LayerNorm(8, device=device))
    nested = torch.nested.nested_tensor([x[0], x[1, :2]], layout=torch.strided)
    for got, expected in zip(norm(nested).unbind(), plain(nested).unbind(), strict=True):
        torch.testing.assert_close(got, expected)
    normed, total = add_norm(norm, x, y)
    torch.testing.assert_close((normed, total), (plain(x + y), x + y))
    _, total = fo.nn.AddLayerNorm(8, device=device)(nested, nested)
    torch.testing.assert_close(total.unbind()[1], 2 * x[1, :2])

    linear = nn.Linear(8, 8, device=device)
    with pytest.raises(RuntimeError, match="type"):
        dense.activated(nn.GELU(), linear, x.to(torch.int32))
    with pytest.raises(RuntimeError, match="weight must have 7 columns"):
        dense.activated(nn.GELU(), linear, x[..., :7])

    heads = torch.randn(1, 2, 3, 584, device=device)  # more features than the kernel supports
    module = types.SimpleNamespace(is_causal=False)
    for dropout in (0.0, 0.5):  # the refused operator has drawn no random numbers
        torch.manual_seed(1)
        expected = functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=dropout).transpose(1, 2)
        torch.manual_seed(1)
        got, _ = attention._attend(attention._sdpa, False, module, heads, heads, heads, None, dropout=dropout)
        torch.testing.assert_close(got, expected)


def test_a_refused_call_is_not_recorded(torch_backend):
    """A mode that sees every operator would otherwise record the refused one."""
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(2, 8, device=torch_backend.device)
    norm = torch_backend.functions.nn.RMSNorm(8, device=x.device, dtype=torch.bfloat16)
    torch.testing.assert_close(make_fx(norm)(x)(x), norm(x))
