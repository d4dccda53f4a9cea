"""PyTorch: a model with fusedops's layers or functions, recorded by torch.fx and TorchScript, and exported to ONNX."""

from __future__ import annotations

import pytest

from tests.helpers.converting import converted


@pytest.fixture
def torch(torch_backend):
    torch_backend.torch.manual_seed(0)
    with torch_backend.torch.device(torch_backend.device):
        yield torch_backend.torch


def sequential(torch, fo):
    nn = torch.nn
    model = nn.Sequential(nn.Linear(12, 16), nn.LayerNorm((4, 4)), nn.RMSNorm(4), nn.Softmax(1), nn.Softmax(-1))
    model.insert(1, nn.Unflatten(-1, (4, 4)))
    return converted(fo, model)


class Layers(pytest.importorskip("torch").nn.Module):
    """One of each fusedops layer, and a function."""

    def __init__(self, fo):
        super().__init__()
        fnn = fo.nn
        self.fo = fo
        self.rotary, self.loss = fnn.RotaryEmbedding(4), fnn.CrossEntropyLoss()
        self.rms, self.norm = fnn.AddRMSNorm(8), fnn.AddLayerNorm(8)
        self.bias, self.gate = fnn.BiasGELU(8), fnn.SwiGLU()

    def forward(self, x, labels):
        x = self.rotary(x).flatten(-2)
        y, x = self.rms(self.bias(x), x)
        y, x = self.norm(y, x)
        y = self.fo.softmax(self.gate(y), causal=True) + self.gate(x)
        return self.loss(y.movedim(-1, 1), labels)


def test_fx(torch, fo):
    """Layers are leaves of the graph, like torch.nn's own, and functions are nodes."""
    model, x = sequential(torch, fo), torch.randn(3, 12)
    graph = torch.fx.symbolic_trace(model)
    assert {node.op for node in graph.graph.nodes} == {"placeholder", "call_module", "output"}
    for shape in ((3, 12), (2, 3, 12)):  # the rank decides which softmax is over the last dimension
        x = torch.randn(shape)
        assert graph(x).equal(model(x))
    assert type(fo.revert(graph).get_submodule("2")) is torch.nn.LayerNorm

    model, x = Layers(fo), torch.randn(2, 5, 2, 4, requires_grad=True)
    labels = torch.randint(4, (2, 5))
    graph = torch.fx.symbolic_trace(model)
    called = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    assert {fo.softmax, fo.swiglu, fo.bias_act} <= called
    loss = graph(x, labels)
    assert loss.equal(model(x, labels))
    assert torch.autograd.grad(loss, x)[0].isfinite().all()


def test_fx_of_a_layer_alone(torch, fo):
    """A graph has no path to the layer, so torch's own code is recorded."""
    x = torch.randn(3, 4)
    for layer in (fo.nn.LayerNorm(4), fo.nn.RMSNorm(4, weight_offset=1.0)):
        torch.testing.assert_close(torch.fx.symbolic_trace(layer)(x), layer(x))
    norm = fo.nn.AddRMSNorm(4)
    torch.testing.assert_close(torch.fx.symbolic_trace(norm)(x, x), norm(x, x))
    with pytest.raises(TypeError, match=r"torch\.fx can record it only as a part of another module"):
        torch.fx.symbolic_trace(fo.nn.RotaryEmbedding(4))


def test_fx_of_a_function_by_another_name(torch, fo):
    softmax = fo.softmax
    with pytest.raises(TypeError, match=r"x must be a tensor; got Proxy: torch.fx records calls as fusedops.torch"):
        torch.fx.symbolic_trace(lambda x: softmax(x))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_torchscript_traces(torch, fo):
    model, x = sequential(torch, fo), torch.randn(3, 12)
    traced = torch.jit.trace(model, x)
    assert "fusedops::layer_norm" in str(traced.inlined_graph)
    assert traced(x).equal(model(x))


def test_onnx_gets_operators_of_torch(torch, fo, monkeypatch):
    """torch.onnx.export records torch's own code."""
    import torch.onnx

    model, x = sequential(torch, fo), torch.randn(3, 12)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    program = torch.export.export(model, (x,))
    assert "fusedops" not in program.graph_module.code
    torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_onnx(torch, torch_backend, fo, tmp_path, dynamo):
    if torch_backend.device != "cpu":
        pytest.skip("a model is written down in the same way for every device")
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    model, x = sequential(torch, fo), torch.randn(3, 12)
    if not dynamo:
        del model[3]  # the older exporter lacks torch's own rms_norm, too
    torch.onnx.export(model, (x,), tmp_path / "model.onnx", dynamo=dynamo)
    assert (tmp_path / "model.onnx").stat().st_size > 0
