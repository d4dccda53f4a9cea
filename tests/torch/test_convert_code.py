"""fusedops.torch.convert of classes recognized by their code alone: copies, and lookalikes."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import textwrap
from types import FunctionType

import pytest

pytest.importorskip("fusedops.torch")

from fusedops.torch.conversion import source
from tests.helpers.converting import converted

NORM = """
    import torch
    from torch import nn

    class Scaled(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.scale = nn.Parameter(torch.linspace(0.5, 2, size))
            self.tiny = 1e-3

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            \"\"\"Somebody's own words.\"\"\"
            kind = values.dtype
            values = values.to(torch.float32)  # and remarks
            squares = values.pow(2).mean(
                -1,
                keepdim=True,
            )
            values = values * torch.rsqrt(squares + self.tiny)
            return self.scale * values.to(kind)
"""
MLP = """
    from torch import nn

    class FeedForward(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.w1, self.w3, self.w2 = nn.Linear(size, 24), nn.Linear(size, 24), nn.Linear(24, size)
            self.act = nn.SiLU()

        def forward(self, x):
            return self.w2(self.act(self.w1(x)) * self.w3(x))
"""
GEMMA = """
    import torch
    from torch import nn

    class Centered(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-0.5, 0.5, size))
            self.eps = 1e-3

        def normed(self, it):
            return it * torch.rsqrt(it.pow(2).mean(-1, keepdim=True) + self.eps)

        def forward(self, x):
            output = self.normed(x.float())
            output = output * (1.0 + self.weight.float())
            return output.type_as(x)
"""


@pytest.fixture
def written(tmp_path):
    """The class defined by a file."""

    def write(code, **changes):
        code = textwrap.dedent(code)
        for old, new in changes.values():
            assert old in code
            code = code.replace(old, new)
        path = tmp_path / f"modeling_{len(list(tmp_path.glob('*.py')))}.py"  # a class whose file changes has no source
        path.write_text(code, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("modeling_somebodys", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        (kind,) = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
        return kind

    return write


@pytest.fixture
def torch(torch_cpu):
    torch_cpu.torch.manual_seed(0)
    return torch_cpu.torch


@pytest.mark.parametrize(
    "code, likeness",
    [
        (NORM, "Scaled -> fusedops.torch.conversion.hf.norms.RMSNorm (as LlamaRMSNorm)"),
        (MLP, "FeedForward -> fusedops.torch.conversion.hf.mlp.GatedMLP (as LlamaMLP)"),
        (GEMMA, "Centered -> fusedops.torch.conversion.hf.norms.RMSNorm (as GemmaRMSNorm)"),
    ],
    ids=["norm", "mlp", "gemma"],
)
def test_a_copy_with_other_names_is_converted(torch_cpu, torch, written, capsys, code, likeness):
    module = written(code)(16)
    x = torch.randn(3, 16)
    name = next(name for name in type(module).forward.__code__.co_varnames if name != "self")
    plain = module(**{name: x})
    torch_cpu.functions.convert(module)
    assert likeness in capsys.readouterr().out
    assert "original" in vars(type(module))
    torch.testing.assert_close(module(**{name: x}), plain)
    torch_cpu.functions.revert(module)
    assert module(x).equal(plain)


@pytest.mark.parametrize(
    "code, change, reason",
    [
        (NORM, ("squares + self.tiny", "squares - self.tiny"), "differs from LlamaRMSNorm in line 9: values = values"),
        (NORM, ("pow(2)", "pow(4)"), "differs from LlamaRMSNorm in line 5: squares = values.pow(4).mean("),
        (NORM, ("torch.float32", "torch.float64"), "differs from LlamaRMSNorm in line 4: values = values.to(torch.fl"),
        (NORM, (".mean(", ".sum("), "differs from LlamaRMSNorm in line 5: squares = values.pow(2).sum("),
        (NORM, ("self.scale * values", "values * self.scale"), "differs from"),
        (NORM, ("self.scale * values.to(kind)", "self.tiny * values.to(kind)"), "differs from LlamaRMSNorm in line 10"),
        (NORM, ("values = values.to(torch.float32)", "pass"), "differs from LlamaRMSNorm in line 4: pass"),
        (NORM, ("torch.rsqrt(squares", "torch.sqrt(squares"), "differs from LlamaRMSNorm in line 9"),
        (MLP, ("self.act(self.w1(x)) *", "self.act(self.w1(x)) +"), "differs from LlamaMLP in line 2: return self.w2("),
        (MLP, ("* self.w3(x)", "* self.w1(x)"), "differs from LlamaMLP in line 2"),
        (GEMMA, ("return it *", "return -it *"), "differs from GemmaRMSNorm in line 2 of normed: return -it * torch."),
        (GEMMA, ("1.0 +", "2.0 +"), "differs from GemmaRMSNorm in line 3: output = output * (2.0 + self.weight.float("),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_a_difference_is_named(torch_cpu, torch, written, capsys, code, change, reason):
    module = written(code, change=change)(16)
    kind = type(module)
    torch_cpu.functions.convert(module if code is not MLP else torch.nn.Sequential(module))
    assert type(module) is kind
    assert f"kept {kind.__name__} " in (printed := capsys.readouterr().out)
    assert reason in printed


def test_a_norm_by_name_always_has_its_first_different_line(torch_cpu, torch, written, capsys):
    body, _ = NORM.replace("class Scaled", "class SomeNorm").split("squares = ", 1)
    kind = written(f"{body}return values / values.amax()\n")
    torch_cpu.functions.convert(torch.nn.Sequential(kind(16)))
    printed = capsys.readouterr().out
    assert "kept SomeNorm '0': differs from " in printed and " in line 4: values = values.to(torch.float32)" in printed


def test_a_class_without_source_is_skipped(torch_cpu, torch, capsys):
    names = {"__name__": "somewhere"}
    exec(textwrap.dedent(NORM), names)
    module = names["Scaled"](16)
    torch_cpu.functions.convert(module)
    assert type(module) is names["Scaled"]
    assert "kept Scaled 'Scaled': the source of its forward is not to be found" in capsys.readouterr().out


def test_a_subclass_that_overrides_a_part_is_skipped(torch_cpu, torch, written, capsys):
    base = written(GEMMA)

    class Doubled(base):
        def normed(self, it):
            return 2 * super().normed(it)

    module = Doubled(16)
    torch_cpu.functions.convert(module)
    assert type(module) is Doubled
    assert "a subclass of Centered, which may compute something else" in capsys.readouterr().out


def test_a_replaced_function_prevents_the_conversion(torch_cpu, torch, written, capsys):
    kind = written(NORM)
    kind.forward = lambda self, values: values
    with pytest.warns(UserWarning, match="nothing was converted"):
        assert type(torch_cpu.functions.convert(kind(4))) is kind
    assert "the source of its <lambda> is not to be found" in capsys.readouterr().out


def test_modules_and_weights_other_than_the_code_assumes(torch_cpu, torch, written, capsys):
    """A weight of two dimensions, and modules in place of a product and an activation."""
    norm, mlp = written(NORM)(16), written(MLP)(16)
    norm.scale = torch.nn.Parameter(torch.ones(3, 16))
    mlp.act = torch.nn.Dropout()
    torch_cpu.functions.convert(torch.nn.Sequential(norm, mlp))
    printed = capsys.readouterr().out
    assert "kept Scaled '0': its scale is not one row" in printed
    assert "FeedForward" not in printed


def first(self, x):
    return self.a(x) - self.b(x)


def the_same(me, value):
    return me.b(value) - me.a(value)


def with_keywords(self, x):
    return difference(x=x, y=1)


def with_swapped_keywords(self, x):
    return other_difference(x=x, y=1)


def difference(x, y):
    return x - y


def other_difference(y, x):
    return y - x


def with_default(self, x, y=1):
    return self.a(x) + y


def with_other_default(self, x, y=2):
    return self.a(x) + y


def in_other_order(self, y, x=1):
    return self.a(x) + y


def handing_on(self, x, mask=None, **more):
    return self.a(x, mask=mask, **more)


def handing_on_more(self, x, mask=None, scale=2, **rest):
    return self.a(x, mask=mask, scale=scale, **rest)


def handing_on_changed(self, x, mask=None, **more):
    mask = -mask
    return self.a(x, mask=mask, **more)


def code(function):
    return source.of_method(type("Kind", (), {"forward": function}), "forward")


@pytest.mark.parametrize(
    "one, other, is_same",
    [
        (first, the_same, True),
        (with_keywords, with_swapped_keywords, False),
        (with_default, with_other_default, False),
        (with_default, in_other_order, False),
        (handing_on, handing_on_more, True),
        (handing_on, handing_on_changed, False),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_tokens(one, other, is_same):
    assert (code(one) == code(other)) is is_same
    assert code(first).attributes == ("a", "b") and code(the_same).attributes == ("b", "a")
    assert code(handing_on_more).forwarded == (frozenset({"mask", "scale", "rest"}),)


def with_positional(self, x, *others, mask=None):
    return self.a(x, mask=mask)


def test_differences_of_a_function_beyond_its_code():
    """Parameters that cannot be passed on, defaults other than the source's, and its module's methods."""
    assert code(with_positional) != code(handing_on)
    exchanged = FunctionType(with_default.__code__, globals(), argdefs=(2,))
    assert code(exchanged) == code(with_other_default)
    assert code(exchanged) != code(with_default)


def test_a_changed_file_is_reread_or_ignored(torch_cpu, torch, tmp_path, monkeypatch, capsys):
    path, other = tmp_path / "edited.py", textwrap.dedent(NORM).replace("values.pow(2)", "values.abs()")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path.write_text(textwrap.dedent(NORM), encoding="utf-8")
    module = importlib.import_module("edited")
    monkeypatch.setitem(sys.modules, "edited", module)
    known, first = module.Scaled(16), module.Scaled
    assert type(converted(torch_cpu.functions, known)) is not first

    path.write_text(other, encoding="utf-8")
    changed = importlib.reload(module).Scaled(16)
    torch_cpu.functions.convert(changed)
    assert "kept Scaled 'Scaled': differs from LlamaRMSNorm in line 5" in capsys.readouterr().out

    for text in (textwrap.dedent(NORM), other.replace("values.dtype", "(values.dtype"), other.replace("-1,", "'''")):
        path.write_text(text, encoding="utf-8")  # and not imported
        source._parsed.cache_clear()
        torch_cpu.functions.convert(changed)
        assert "kept Scaled 'Scaled': the source of its forward is not to be found" in capsys.readouterr().out
