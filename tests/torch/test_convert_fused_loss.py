"""`convert(model, fuse_loss=True)`: transformers' causal language models without logits in training."""

from __future__ import annotations

import copy
import pickle

import pytest

from tests.helpers.converting import converted

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
MODELS = {  # plain, with a soft cap, with an additional loss
    "Llama": SMALL,
    "Gemma2": {**SMALL, "final_logit_softcapping": 2.0},
    "Mixtral": {**SMALL, "num_local_experts": 2, "output_router_logits": True},
}


@pytest.fixture
def tokens(torch_backend, torch, random):
    return torch_backend.from_numpy(random.integers(0, 64, (2, 7)))


def made(torch_backend, name):
    torch_backend.torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**MODELS[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(torch_backend.device).train()
    if name == "Mixtral":
        model.set_experts_implementation("eager")  # the others do not support float64
    return model


@pytest.fixture
def llama(torch_backend):
    return made(torch_backend, "Llama")


def loss_and_gradients(torch, model, tokens, **options):
    labels = tokens.clone()
    labels[0, 3:5] = -100
    output = model(input_ids=tokens, labels=labels, **options)
    return output, [output.loss, *torch.autograd.grad(output.loss, list(model.parameters()))]


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in MODELS), ("Llama", {"num_items_in_batch": 5})])
def test_loss_and_gradients(torch_backend, torch, fo, tokens, name, options):
    """Errors against float64 are not larger than without the fused loss."""
    model = made(torch_backend, name)
    _, exact = loss_and_gradients(torch, copy.deepcopy(model).double(), tokens, **options)
    _, before = loss_and_gradients(torch, model, tokens, **options)
    converted(fo, model, type(model).__name__, fuse_loss=True)
    output, found = loss_and_gradients(torch, model, tokens, **options)
    assert output.logits is None
    for got, own, right in zip(found, before, exact, strict=True):
        error, size = (got - right).abs().max(), right.abs().max()
        assert error <= 2 * (own - right).abs().max() + 1e-5 * size


def test_only_in_training_with_labels(torch_backend, torch, fo, tokens, llama, capsys):
    expected = llama(input_ids=tokens, labels=tokens).logits
    fo.convert(llama)
    assert "fuse_loss=True would leave out the logits of LlamaForCausalLM in training: 1 kB" in capsys.readouterr().out
    assert llama(input_ids=tokens, labels=tokens).logits is not None
    fo.revert(llama)
    fo.convert(llama, fuse_loss=True)
    assert "returns no logits in training with labels, which saves 1 kB a token" in capsys.readouterr().out
    for labels, training in ((None, True), (tokens, False)):
        logits = llama.train(training)(input_ids=tokens, labels=labels).logits
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    llama.train()
    for model in (llama, copy.deepcopy(llama), pickle.loads(pickle.dumps(llama))):
        assert model(input_ids=tokens, labels=tokens).logits is None
        assert model(input_ids=tokens, labels=tokens, return_dict=False)[0].dim() == 0
    assert type(fo.revert(llama)) is transformers.LlamaForCausalLM
    assert llama(input_ids=tokens, labels=tokens).logits is not None


def test_compiled_as_one_graph(torch_backend, torch, fo, tokens, llama):
    converted(fo, llama, type(llama).__name__, fuse_loss=True)
    expected = llama(input_ids=tokens, labels=tokens)
    output = torch.compile(llama, backend="aot_eager", fullgraph=True)(input_ids=tokens, labels=tokens)
    assert output.logits is None
    torch.testing.assert_close(output.loss, expected.loss)


def test_a_head_that_is_no_plain_layer(torch, fo, tokens, llama, capsys):
    """A head with an adapter or a hook."""

    class Adapted(torch.nn.Linear):
        pass

    seen = []
    handle = llama.lm_head.register_forward_hook(lambda *_: seen.append(True))
    fo.convert(llama, fuse_loss=True)
    assert "the logits of LlamaForCausalLM are computed in training: its head has a hook" in capsys.readouterr().out
    assert llama(input_ids=tokens, labels=tokens).logits is not None and seen
    handle.remove()
    assert llama(input_ids=tokens, labels=tokens).logits is None
    llama.lm_head.__class__ = Adapted
    assert llama(input_ids=tokens, labels=tokens).logits is not None


def test_another_loss_is_asked_for(torch, fo, tokens, llama):
    converted(fo, llama, type(llama).__name__, fuse_loss=True)
    llama.loss_function = lambda logits, labels, **_: logits.sum()
    output = llama(input_ids=tokens, labels=tokens)
    torch.testing.assert_close(output.loss, output.logits.sum())


def test_a_model_that_uses_its_logits_is_skipped(torch_cpu, capsys):
    config = transformers.CohereConfig(**{**SMALL, "pad_token_id": 0})
    torch_cpu.functions.convert(transformers.CohereForCausalLM(config), fuse_loss=True)
    line = "something with its logits that is not known: logits = logits * self.logit_scale"
    assert (
        f"the logits of CohereForCausalLM are computed in training: its forward does {line}" in capsys.readouterr().out
    )
