"""fusedops.torch.explain: its measurements, and that it restores the model."""

from __future__ import annotations

import copy
import random
import sys

import pytest

from tests.helpers.converting import converted
from tests.helpers.hugging_face import FAMILIES, Family

torch = pytest.importorskip("torch")
nn = torch.nn


class Model(nn.Module):
    """A model with all kinds of state that a step may change."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(0.5))
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.register_buffer("last", torch.zeros(()), persistent=False)
        self.steps = 0

    def forward(self, x, scale=1.0):
        self.steps += 1
        self.last = x.detach().sum() + random.random()
        y = torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False)
        return {"y": self.head(self.norm(y)) * scale, "count": self.steps}


@pytest.fixture(autouse=True)
def a_single_step(monkeypatch):
    from fusedops.torch import explaining

    monkeypatch.setattr(explaining, "STEPS", 1)
    monkeypatch.setattr(explaining, "_WARM_UP", 1)


@pytest.fixture
def x(torch_backend):
    torch.manual_seed(0)
    return torch.randn(16, 8, device=torch_backend.device)


def state(model):
    """All state that must not change, by value."""
    return copy.deepcopy(
        {
            "classes": [type(module) for module in model.modules()],
            "training": [module.training for module in model.modules()],
            "hooks": [list(module._forward_hooks) for module in model.modules()],
            "values": {**model.state_dict(), "last": model.last, "random": torch.get_rng_state()},
            "gradients": [p.grad for p in model.parameters()],
            "steps": model.steps,
            "random": random.getstate(),
        }
    )


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_the_model_is_restored(torch_backend, fo, x, training):
    model = Model().to(torch_backend.device)
    model(x)["y"].sum().backward()
    model.train(training)
    model.head.weight.grad = None
    calls = []
    handle = model.body[1].register_forward_hook(lambda *_: calls.append(1))
    outstanding = model(x)["y"].sum()  # its backward reads the buffers
    before, last = state(model), model.last
    call = nn.Module.__call__
    explanation = fo.explain(model, x, scale=2.0)
    after = state(model)
    torch.testing.assert_close(after.pop("values"), before.pop("values"), rtol=0, atol=0)
    torch.testing.assert_close(after.pop("gradients"), before.pop("gradients"), rtol=0, atol=0)
    assert str(after) == str(before)
    assert model.last is last and nn.Module.__call__ is call and calls
    outstanding.backward()
    handle.remove()
    rows = {row.kind: row for row in explanation.rows}
    assert rows["LayerNorm"].replaced == 1 and rows["LayerNorm"].ours.seconds > 0
    assert rows["Linear"].count == 2 and not rows["Linear"].replaced
    assert (explanation.ours.peak is not None) == (torch_backend.device == "cuda")


def test_calls_and_saved_bytes_of_a_converted_model(torch_backend, fo, transformers, inputs_of_llama):
    """The norms of this model are computed in the surrounding blocks; converted before, and not."""
    model = FAMILIES["llama"].build(device=torch_backend.device)
    explanations = [fo.explain(model, **inputs_of_llama)]
    converted(fo, model)
    explanations.append(fo.explain(model, **inputs_of_llama))
    assert hasattr(type(model.model.norm), "mixin")  # unchanged
    for explanation in explanations:
        rows = {row.kind: row for row in explanation.rows}
        assert rows["LlamaRMSNorm"].replaced == rows["LlamaRMSNorm"].count > 2
        assert rows["SiLUActivation"].theirs.saved > rows["SiLUActivation"].ours.saved == 0
        assert rows["LlamaDecoderLayer"].ours.saved > 0  # of the norm after the residual
        assert explanation.theirs.saved == sum(row.theirs.saved for row in explanation.rows)
        assert explanation.ours.saved < explanation.theirs.saved
        assert all(row.theirs.seconds > 0 for row in explanation.rows)
        lines = str(explanation).splitlines()
        assert lines[0].startswith("fusedops: a training step of 'LlamaForCausalLM' on ")
        assert any(line.startswith("LlamaRMSNorm *") for line in lines)
        assert "modules replaced; the others take" in lines[-1] and "Linear" in lines[-1]


def test_experts(torch_backend, fo, transformers, inputs_of_llama):
    """They save the gates and ups for the backward, and not the gated values, sorted rows and results of slots."""
    explanation = fo.explain(Family("qwen3_moe").build(device=torch_backend.device), **inputs_of_llama)
    (experts,) = (row for row in explanation.rows if row.kind == "Qwen3MoeExperts")
    assert experts.replaced == experts.count > 1
    assert 0 < experts.ours.saved < experts.theirs.saved


@pytest.fixture
def inputs_of_llama(torch_backend):
    ids = torch.arange(24, device=torch_backend.device).reshape(2, 12)
    return {"input_ids": ids, "labels": ids}


def test_saved_bytes_by_hand(torch_backend, fo, x):
    """The input and the weights exist anyway; a product saves the other factor, and a tensor counts once."""
    first, last = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    model = nn.Sequential(first, nn.Identity(), nn.ReLU(), last)  # the activation does not directly follow the product
    explanation = fo.explain(model.to(x.device), x)
    rows = {row.kind: row.theirs.saved for row in explanation.rows}
    assert rows["ReLU"] == 16 * 8 * 4 and rows["Linear"] == 0
    assert str(explanation).startswith("fusedops: nothing in this model could be converted\n")


def test_a_slow_model_runs_fewer_steps(torch_cpu, fo, monkeypatch):
    from fusedops.torch import explaining

    monkeypatch.setattr(explaining, "STEPS", 5)
    monkeypatch.setattr(explaining, "_LONG", 0.0)
    assert fo.explain(nn.Linear(8, 8), torch.ones(2, 8)).steps == 1


def test_a_picture(torch_backend, fo, x, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    explanation = fo.explain(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).to(x.device), x)
    figure = explanation.plot(tmp_path / "step.png")
    assert (tmp_path / "step.png").stat().st_size > 10_000
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        f"{row.kind}{' *' if row.replaced else ''}" for row in explanation.rows
    ]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="a picture needs matplotlib, which is not installed: pip install"):
        explanation.plot()


class Returns(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.value = value

    def forward(self, x):
        return self.value


class FSDPModule:
    """Stands for the class that torch's fully_shard gives a module."""


BAD = {
    "model must be a torch.nn.Module; got <class 'int'>": lambda: 1,
    "needs a parameter that requires a gradient; the model has none": lambda: nn.ReLU(),
    "the model's outputs hold no floating-point tensor": lambda: Returns((torch.ones(1, dtype=torch.int64), "text")),
    "the model's outputs depend on no parameter": lambda: Returns(torch.ones(1)),
    "must be on one device, a CPU or a CUDA GPU; they are on meta": lambda: nn.Linear(2, 2, device="meta"),
    "the model is distributed, and": lambda: type("FSDPLinear", (FSDPModule, nn.Linear), {})(2, 2),
    "the model is compiled; pass the module that": lambda: torch.compile(nn.Linear(2, 2)),
}


@pytest.mark.parametrize("sentence", BAD)
def test_bad_models(torch_cpu, fo, sentence):
    with pytest.raises((TypeError, ValueError), match=f"fusedops.torch.explain: .*{sentence}"):
        fo.explain(BAD[sentence](), torch.ones(2, 2))


def test_an_error_of_the_model(torch_backend, fo, x):
    model = Model().to(x.device)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fo.explain(model, x[:, :7])
    assert type(model.body[1]) is nn.LayerNorm and model.steps == 0


class Adding(nn.Module):
    """Attributes added in the first forward must not stay."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, model):
        if not hasattr(self, "scale"):
            device = model.device
            self.scale, self.norm = nn.Parameter(torch.ones(8, device=device)), nn.LayerNorm(8, device=device)
        return self.norm(self.linear(model) * self.scale)


def test_attributes_added_by_a_forward_are_removed(torch_backend, fo, x):
    module = Adding().to(x.device)
    fo.explain(module, model=x)  # also the name of explain's own argument
    assert not hasattr(module, "scale") and [name for name, _ in module.named_modules()] == ["", "linear"]


def test_a_lazy_model_is_refused_and_stays_lazy(torch_cpu):
    module = nn.Sequential(nn.LazyLinear(8))
    with pytest.raises(ValueError, match="a lazy module of the model has no parameters yet; call the model once"):
        torch_cpu.functions.explain(module, torch.ones(2, 8))
    assert module[0].has_uninitialized_params()
