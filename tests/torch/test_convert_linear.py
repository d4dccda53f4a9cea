"""fusedops.torch.convert of linear layers whose rows are not aligned: they are fused like others."""

from __future__ import annotations

import pytest

from tests.helpers.converting import converted
from tests.helpers.hugging_face import FAMILIES
from tests.helpers.torch_functions import operators

PLAIN = "fusedops.torch.conversion.linear.PlainLinear"


@pytest.fixture
def torch(torch_backend, monkeypatch):
    """Layers of any size are converted, as large ones are."""
    from fusedops.torch.conversion import linear

    monkeypatch.setattr(linear, "_FEWEST_WEIGHTS", 0)
    return torch_backend.torch


@pytest.fixture
def tokens(torch_backend, torch):
    return torch.arange(12, device=torch_backend.device)[None]


@pytest.mark.parametrize("name, fused", [("bert", "Linear"), ("llama", "GatedLinear")])
def test_transformers(torch_backend, torch, transformers, tokens, name, fused, capsys):
    model = FAMILIES[name].build("float64", torch_backend.device, intermediate_size=93)
    plain = model(tokens).logits
    torch_backend.functions.convert(model)
    report = capsys.readouterr().out
    assert PLAIN in report and "its product is" not in report
    got = model(tokens).logits
    torch.testing.assert_close(got, plain, rtol=0, atol=1e-5)  # transformers' norms compute in float32
    assert f"Fusedops{fused}Backward" in operators(got)


@pytest.mark.parametrize("compiled", [False, True])
def test_sequential(torch_backend, torch, fo, compiled, capsys):
    model = torch.nn.Sequential(torch.nn.Linear(12, 23), torch.nn.GELU()).to(torch_backend.device)
    x = torch.randn(4, 12, device=torch_backend.device)
    plain = model(x)
    fo.convert(model)
    assert PLAIN in capsys.readouterr().out and type(model) is not torch.nn.Sequential
    got = torch.compile(model, fullgraph=True, backend="eager")(x) if compiled else model(x)
    torch.testing.assert_close(got, plain)
    assert operators(got) == {"FusedopsLinearBackward"}
    fo.revert(model)
    assert [type(each) for each in (model, *model)] == [torch.nn.Sequential, torch.nn.Linear, torch.nn.GELU]


@pytest.mark.parametrize("name", ["GatedLinear", "LinearCrossEntropyLoss"])
def test_linear_layers_inside_fusedops_layers(torch_backend, torch, fo, name):
    """A linear layer inside a fusedops layer is converted with the surrounding model."""
    layer = getattr(fo.nn, name)(12, 23).to(torch_backend.device)
    converted(fo, torch.nn.ModuleList([layer]))
    assert {type(child).__name__ for child in layer.children()} == {"PlainLinear"}
    assert layer.why_not() is None


def test_the_compiler_sees_the_same(torch, fo):
    """The inputs of a graph have the same order, which decides whose rows the compiler pads for products of the
    backward."""
    model, graphs = torch.nn.Linear(12, 23), []

    def backend(graph, _):
        graphs.append([node.name for node in graph.graph.nodes])
        return graph.forward

    for is_converted in (False, True):
        if is_converted:
            converted(fo, model, "Linear")
        torch.compile(lambda x: model(x).sin(), backend=backend)(torch.randn(4, 12))
        torch.compiler.reset()
    assert len(graphs) == 2 and graphs[0] == graphs[1]


def test_a_class_derived_by_parametrizations_is_not_fused(torch, fo):
    """It is another class than the converted one."""
    model = converted(fo, torch.nn.Sequential(torch.nn.Linear(12, 23), torch.nn.SiLU()))
    torch.nn.utils.parametrizations.weight_norm(model[0])
    x = torch.randn(4, 12)
    got = model(x)
    torch.testing.assert_close(got, torch.nn.functional.silu(model[0](x)))
    assert not operators(got)
