"""fusedops.torch.convert and dropout: before a residual connection it is computed in the pass of the sum."""

from __future__ import annotations

import pickle

import pytest

from tests.helpers.converting import converted

RATE = 0.5
SIZE = 16


@pytest.fixture
def torch(torch_backend, monkeypatch):
    from fusedops.torch.nn import dropout

    monkeypatch.setattr(dropout, "_FEWEST_ON_GPU", 0)
    torch_backend.torch.manual_seed(0)
    with torch_backend.torch.device(torch_backend.device):
        yield torch_backend.torch


def bert(t):
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    config = t.BertConfig(**sizes, vocab_size=50, attention_probs_dropout_prob=0.0, hidden_dropout_prob=RATE)
    return t.BertModel(config, add_pooling_layer=False)


def esm(t):
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    config = t.EsmConfig(**sizes, vocab_size=50, pad_token_id=1, mask_token_id=2, hidden_dropout_prob=RATE)
    config.attention_probs_dropout_prob = 0.0
    return t.EsmModel(config)


def vit(t):
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    return t.ViTModel(t.ViTConfig(**sizes, image_size=32, hidden_dropout_prob=RATE))


def t5(t):
    sizes = {"num_layers": 2, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_heads": 4, "vocab_size": 50}
    return t.T5Model(t.T5Config(**sizes, dropout_rate=RATE))


def phi3(t):
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    config = t.Phi3Config(**sizes, vocab_size=50, pad_token_id=0, resid_pdrop=RATE)
    return t.Phi3Model(config)


MODELS = {  # numbers of sums with a norm and without
    "bert": (bert, 4, 0),
    "esm": (esm, 0, 4),
    "vit": (vit, 2, 2),
    "t5": (t5, 0, 10),
    "phi3": (phi3, 2, 2),
}


@pytest.fixture(params=MODELS)
def built(request, torch, transformers):
    """A model, its inputs, and its numbers of fused sums with a norm and without."""
    build, *counts = MODELS[request.param]
    model = build(transformers)
    tokens = torch.arange(24).view(2, 12) % 40 + 3
    if request.param == "vit":
        return model, {"pixel_values": torch.randn(2, 3, 32, 32)}, counts
    return model, {"input_ids": tokens, **({"decoder_input_ids": tokens} if request.param == "t5" else {})}, counts


def state_and_gradients(torch, model, inputs, seed=7):
    torch.manual_seed(seed)
    model.zero_grad()
    y = model(**inputs)[0]
    y.backward(torch.linspace(-1, 1, y.numel()).view_as(y))
    return [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def calls(torch, monkeypatch):
    """The names of the public functions that are called, and their rates."""
    import fusedops.torch as fo

    seen = []
    for name in ("dropout", "dropout_add", "add_rms_norm", "add_layer_norm"):
        original = getattr(fo, name)

        def call(*args, _original=original, _name=name, **kwargs):
            seen.append(_name if "norm" not in _name or not kwargs.get("dropout") else f"{_name} with dropout")
            return _original(*args, **kwargs)

        monkeypatch.setattr(fo, name, call)
    return seen


def test_evaluation_is_unchanged_and_revert_restores_it(torch, fo, built):
    model, inputs, _ = built
    kinds, keys = [type(module) for module in model.modules()], list(model.state_dict())
    model.eval()
    plain = state_and_gradients(torch, model, inputs)
    converted(fo, model)
    assert list(model.state_dict()) == keys
    for got, expected in zip(state_and_gradients(torch, model, inputs), plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-4 * max(1.0, expected.abs().max().item()))
    fo.revert(model)
    assert [type(module) for module in model.modules()] == kinds
    torch.testing.assert_close(state_and_gradients(torch, model, inputs)[0], plain[0], rtol=0, atol=0)


def test_sums_in_training_draw_what_they_drop(torch, fo, built, monkeypatch):
    """They drop the same elements as a model in which hooks make each dropout a separate call. Only dropouts with a
    hook are called."""
    model, inputs, (with_norm, without) = built
    converted(fo, model).train()
    assert all(type(module) is not torch.nn.Dropout or module.p == 0 for module in model.modules())
    seen = calls(torch, monkeypatch)
    fused = state_and_gradients(torch, model, inputs)
    norms = [name for name in seen if name.endswith(" with dropout")]
    assert (len(norms), seen.count("dropout_add")) == (with_norm, without)
    for got, expected in zip(state_and_gradients(torch, model, inputs), fused, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-4 * max(1.0, expected.abs().max().item()))
    hooks = [m.register_forward_hook(lambda *_: None) for m in model.modules() if isinstance(m, torch.nn.Dropout)]
    seen.clear()
    alone = state_and_gradients(torch, model, inputs)
    assert not [name for name in seen if name.startswith("dropout_")]
    for hook in hooks:
        hook.remove()
    for got, expected in zip(alone, fused, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-4 * max(1.0, expected.abs().max().item()))
    assert (state_and_gradients(torch, model, inputs, seed=8)[0] != fused[0]).any()


@pytest.fixture(params=[(kind, first) for kind in ("Encoder", "Decoder") for first in (False, True)], ids=str)
def layer(request, torch):
    """One of torch's own layers, its inputs, and its numbers of fused sums with a norm and without."""
    kind, norm_first = request.param
    layer = getattr(torch.nn, f"Transformer{kind}Layer")(SIZE, 2, 24, RATE, norm_first=norm_first, batch_first=True)
    layer.self_attn.dropout = 0.0  # attention has its own dropout
    if kind == "Decoder":
        layer.multihead_attn.dropout = 0.0
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    causal = torch.ones(6, 6, dtype=torch.bool).triu(1)
    masks = {"Encoder": ("src_mask", "src_key_padding_mask"), "Decoder": ("tgt_mask", "tgt_key_padding_mask")}[kind]
    inputs = [torch.randn(2, 6, SIZE, requires_grad=True) for _ in range(1 + (kind == "Decoder"))]
    sums = len(inputs) + 1
    return layer, inputs, dict(zip(masks, (causal, padding), strict=True)), (sums - norm_first, int(norm_first))


def around(torch, layer):
    """A model of this layer alone: torch.fx records a layer of a model as one node."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, memory):
            return self.layer(x) if memory is None else self.layer(x, memory)

    return Model()


def run_layer(torch, layer, inputs, masks):
    torch.manual_seed(2)
    y = layer(*inputs, **masks)
    wanted = [*inputs, *layer.parameters()]
    return [y.detach(), *torch.autograd.grad(y, wanted, torch.linspace(-1, 1, y.numel()).view_as(y))]


def assert_close(torch, got, expected):
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-4 * max(1.0, y.abs().max().item()))


@pytest.mark.parametrize("training", [False, True])
def test_torch_layers_drop_with_the_numbers_of_their_dropout_layers(torch, fo, layer, training, monkeypatch):
    """They give the same results, with the random numbers of their dropout layers; and so after `revert`."""
    module, inputs, masks, counts = layer
    module.train(training)
    kind = type(module)
    plain = run_layer(torch, module, inputs, masks) if not training else None
    converted(fo, module)
    ours = type(module)
    assert ours is not kind and issubclass(ours, kind)
    seen = calls(torch, monkeypatch)
    fused = run_layer(torch, module, inputs, masks)
    norms = [name for name in seen if name.endswith(" with dropout")]
    assert (len(norms), seen.count("dropout_add")) == (counts if training else (0, 0))
    module.__class__ = kind  # torch's code around fusedops's layers
    assert_close(torch, run_layer(torch, module, inputs, masks), fused)
    module.__class__ = ours
    if plain:
        assert_close(torch, fused, plain)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_close(torch, run_layer(torch, compiled, inputs, masks), fused)
    copy = pickle.loads(pickle.dumps(module))
    assert type(copy) is ours
    assert_close(torch, run_layer(torch, copy, inputs, masks), fused)
    recorded = torch.fx.symbolic_trace(
        around(torch, module), concrete_args={} if len(inputs) == 2 else {"memory": None}
    )
    assert [node.target for node in recorded.graph.nodes if node.op == "call_module"] == ["layer"]
    assert type(fo.revert(module)) is kind


def test_other_dropouts_are_called(torch, fo, transformers, monkeypatch):
    """A subclass, one in place, one that drops nothing or everything, and one in evaluation."""

    class Mine(torch.nn.Dropout):
        def forward(self, x):
            return x + 1

    model = converted(fo, bert(transformers)).train()
    output = model.encoder.layer[0].output
    seen = calls(torch, monkeypatch)
    x = torch.randn(2, 12, 96), torch.randn(2, 12, 64)
    s = output.dense(x[0])
    for dropout, expected in (
        (Mine(RATE), s + 1),
        (torch.nn.Dropout(0.0), s),
        (torch.nn.Dropout(1.0), 0 * s),
        (torch.nn.Dropout(RATE).eval(), s),
    ):
        output.dropout = dropout
        torch.testing.assert_close(output(*x), output.LayerNorm(expected + x[1]))
        assert "add_layer_norm with dropout" not in seen
    output.dropout = torch.nn.Dropout(RATE)  # which may be a part of a converted model, too
    output(*x)
    assert seen[-1] == "add_layer_norm with dropout"


def test_autocast_compile_and_checkpoints(torch, torch_backend, fo, transformers):
    model = converted(fo, bert(transformers)).train()
    inputs = {"input_ids": torch.arange(24).view(2, 12) % 40 + 3}
    expected = state_and_gradients(torch, model, inputs)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compared = {"compiled": state_and_gradients(torch, compiled, inputs)}
    model.gradient_checkpointing_enable({"use_reentrant": False})
    compared["checkpointed"] = state_and_gradients(torch, model, inputs)
    model.gradient_checkpointing_disable()
    for name, results in compared.items():
        for got, wanted in zip(results, expected, strict=True):
            limit = 2e-4 * max(1.0, wanted.abs().max().item())
            torch.testing.assert_close(got, wanted, rtol=0, atol=limit, msg=lambda text, name=name: f"{name}: {text}")
    with torch.autocast(torch_backend.device, torch.bfloat16):
        results = state_and_gradients(torch, model, inputs)
    assert all(x.isfinite().all() for x in results)
    assert (results[0] - expected[0]).abs().mean() < 0.1


def test_report(torch, fo, capsys):
    model = torch.nn.Sequential(
        torch.nn.Dropout(RATE), torch.nn.Dropout(0.0), torch.nn.Dropout(RATE, inplace=True), torch.nn.Dropout1d(RATE)
    )
    fo.convert(model)
    assert capsys.readouterr().out.splitlines() == [
        "fusedops: 1 of 4 modules of 'Sequential' replaced",
        "     1 Dropout -> fusedops.torch.nn.dropout.Dropout",
        "  kept Dropout '2': inplace is set",
        "  kept Dropout '1': p is 0: it drops nothing",
        "  no counterpart for Dropout1d (1)",
        "  with the same seed, dropout drops other elements than before: its random numbers are fusedops's",
    ]
    assert type(fo.revert(model)[0]) is torch.nn.Dropout


def test_two_modules_and_a_sum_are_not_dropout(torch, fo, capsys):
    """The code of a form alone is not a dropout before a residual connection."""

    class Mine(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(SIZE, SIZE), torch.nn.LayerNorm(SIZE)

        def forward(self, x, y):
            x = self.first(x)
            x = self.second(x)
            x = x + y
            return x

    model = converted(fo, Mine(), "LayerNorm", verbose=True)
    assert type(model) is Mine and "Mine" not in capsys.readouterr().out.replace("'Mine'", "")
