"""fusedops.torch.convert of GPT-2, BERT, Phi and Phi-3: heads with their own loss, and skipped modules with reasons."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.accuracy import assert_as_accurate
from tests.helpers.converting import converted
from tests.helpers.hugging_face import FAMILIES, Family
from tests.helpers.torch_functions import operators

ROWS, LENGTH = 3, 16
# The meaning of each model's labels.
HEADS = {
    "BertForMaskedLM": "tokens",
    "BertForMultipleChoice": "choices",
    "BertForNextSentencePrediction": "rows",
    "BertForPreTraining": "tokens and rows",
    "BertForQuestionAnswering": "spans",
    "BertForSequenceClassification": "rows",
    "BertForTokenClassification": "classes of tokens",
    "GPT2DoubleHeadsModel": "tokens and choices",
    "GPT2ForQuestionAnswering": "spans",
    "GPT2ForSequenceClassification": "rows",
    "GPT2ForTokenClassification": "classes of tokens",
}


@pytest.fixture
def torch(torch_backend, transformers):
    return torch_backend.torch


def built(name, device):
    family = FAMILIES["bert" if name.startswith("Bert") else "gpt2"]
    options = {**family.options, "is_decoder": False, "pad_token_id": 0}
    return replace(family, model=name, options=options).build("float64", device)


def batch(kind, random, device):
    import torch

    def numbers(shape, end):
        return torch.from_numpy(random.integers(1, end, shape)).to(device)

    tokens = numbers((ROWS, LENGTH), 128)
    choices = numbers((ROWS, 2, LENGTH), 128)
    return {
        "tokens": {"input_ids": tokens, "labels": tokens},
        "choices": {"input_ids": choices, "labels": numbers((ROWS,), 2)},
        "tokens and choices": {"input_ids": choices, "labels": choices, "mc_labels": numbers((ROWS,), 2)},
        "rows": {"input_ids": tokens, "labels": numbers((ROWS,), 2)},
        "tokens and rows": {"input_ids": tokens, "labels": tokens, "next_sentence_label": numbers((ROWS,), 2)},
        "classes of tokens": {"input_ids": tokens, "labels": numbers((ROWS, LENGTH), 2)},
        "spans": {
            "input_ids": tokens,
            "start_positions": numbers((ROWS,), LENGTH),
            "end_positions": numbers((ROWS,), 2 * LENGTH),  # some beyond the text, which are ignored
        },
    }[kind]


def loss_and_gradients(model, inputs):
    model.zero_grad()
    found = model(**inputs)
    found.loss.backward()
    return list(found), [found.loss.detach()] + [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_close(torch, got, expected):
    """In float64 both compute the same; a few thousand roundings may differ.

    Compared over all results: some are exact zeros, such as the gradient of a key bias, whose computed values consist
    of errors alone.
    """
    limit = 2**12 * torch.finfo(torch.float64).eps * max(x.abs().max().item() for x in expected)
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=limit)


@pytest.mark.parametrize("name", HEADS)
def test_heads(torch_backend, torch, name, random):
    model = built(name, torch_backend.device)
    inputs = batch(HEADS[name], random, torch_backend.device)
    plain_keys, plain = loss_and_gradients(model, inputs)
    kind = type(model)
    converted(torch_backend.functions, model)
    assert type(model) is not kind and isinstance(model, kind)
    keys, got = loss_and_gradients(model, inputs)
    assert keys == plain_keys
    assert_close(torch, got, plain)
    assert torch.equal(model(**inputs, return_dict=False)[0], model(**inputs).loss)
    torch_backend.functions.revert(model)
    assert type(model) is kind
    assert torch.equal(model(**inputs).loss, plain[0])


@pytest.mark.parametrize(
    "family, options",
    [
        ("phi", {"qk_layernorm": True}),
        ("phi", {"partial_rotary_factor": 1.0}),
        ("phi3", {"partial_rotary_factor": 0.5}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "activation_function": "relu"}),
        ("bert", {"hidden_act": "silu"}),
    ],
    ids=str,
)
def test_options(torch_backend, torch, family, options, random):
    """Options that change the results of converted modules."""
    from tests.helpers import torch_models as models

    model = FAMILIES[family].build("float32", torch_backend.device, **options)
    inputs = models.batch(random, torch_backend.device)
    exact = models.exact_results(model, inputs)
    plain = models.arrays(models.results(model, inputs))
    converted(torch_backend.functions, model)
    assert_as_accurate(models.arrays(models.results(model, inputs)), plain, exact, "float32")


def rotated(torch, call):
    """The result, and the number of tensors that the kernel rotated."""
    with torch.profiler.profile() as profile:
        result = call()
    return result, sum(event.count for event in profile.key_averages() if event.key == "fusedops::rope")


def test_phi3_turns_a_part_of_its_features(torch_backend, torch, random):
    """The kernel rotates them, although there are fewer angles than features."""
    from transformers.models.phi3 import modeling_phi3

    from fusedops.torch.conversion.hf.rotary import fused

    q, k = (torch_backend.from_numpy(random.normal(size=(2, 4, 5, 16))) for _ in range(2))
    angles = torch_backend.from_numpy(random.normal(size=(1, 5, 4)))
    cos, sin = (torch.cat([table, table], -1) for table in (angles.cos(), angles.sin()))
    apply = fused(modeling_phi3.apply_rotary_pos_emb)
    expected = modeling_phi3.apply_rotary_pos_emb(q, k, cos, sin)
    got, count = rotated(torch, lambda: apply(q, k, cos, sin))
    assert count == 2
    assert_close(torch, got, expected)


@pytest.fixture
def to_rotate(torch_backend, torch, random):
    """q and k at eight positions, and two tables of repeated angles."""
    q, k = (torch_backend.from_numpy(random.normal(size=(2, 4, 8, 16))) for _ in range(2))
    angles = torch_backend.from_numpy(random.normal(size=(1, 8, 8)))
    return q, k, *(torch.cat([table, table], -1) for table in (angles.cos(), angles.sin()))


def test_one_position_is_turned_without_transpositions(torch_backend, torch, to_rotate):
    """In decoding both layouts are the same memory. The bits are those of the position among others."""
    from transformers.models.llama import modeling_llama

    from fusedops.torch.conversion.hf.rotary import fused

    q, k, cos, sin = to_rotate
    apply = fused(modeling_llama.apply_rotary_pos_emb)
    # As projections give them: [B, T, H, D], transposed.
    q, k = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k))
    expected = [x[:, :, 3:4] for x in apply(q, k, cos, sin)]
    one = [x[:, :, 3:4].transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k)]
    tables = [table[:, 3:4].contiguous() for table in (cos, sin)]
    with torch.profiler.profile() as profile:
        got = apply(*one, *tables)
    names = [event.key for event in profile.key_averages()]
    assert "fusedops::rope" in names and "aten::transpose" not in names
    assert all(map(torch.equal, got, expected))


def test_queries_are_turned_without_keys(torch_backend, torch, to_rotate):
    """An attention may reuse the keys of an earlier layer."""
    name = "transformers.models.mistral_large4.modeling_mistral_large4"  # missing in older versions of transformers
    modeling_mistral_large4 = pytest.importorskip(name)

    from fusedops.torch.conversion.hf.rotary import fused

    q, _, cos, sin = to_rotate
    plain = modeling_mistral_large4.apply_rotary_pos_emb_interleave
    (got, keys), count = rotated(torch, lambda: fused(plain)(q, None, cos, sin))
    assert count == 1 and keys is None
    assert_close(torch, [got], [plain(q, None, cos, sin)[0]])


def test_stored_angles_that_are_no_longer_complex(torch_backend, torch, to_rotate):
    """`model.to(dtype)` drops the imaginary part of a buffer, and the model continues with the real part."""
    from transformers.models.llama4 import modeling_llama4

    from fusedops.torch.conversion.hf.rotary import fused

    q, k, cos, _ = to_rotate
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    plain, angles = modeling_llama4.vision_apply_rotary_emb, cos[0, :, None, :8]
    for got, expected in zip(fused(plain)(q, k, angles), plain(q, k, angles), strict=True):
        assert torch.equal(got, expected)


def test_a_rotation_without_gradients(torch_backend, torch):
    """A function decorated by torch.no_grad() is converted and decorated again; other wrappers of a forward are
    unknown."""
    from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer

    class Inferring(DeepseekV32Indexer):
        forward = torch.inference_mode()(DeepseekV32Indexer.forward.__wrapped__)

    model = Family("deepseek_v32").build(device=torch_backend.device)
    first, second = (layer.self_attn.indexer for layer in model.model.layers)
    second.__class__ = Inferring
    modes = []
    first.k_norm.register_forward_hook(lambda *_: modes.append(torch.is_grad_enabled()))
    tokens = torch.arange(12, device=torch_backend.device)[None]
    expected = model(tokens).logits
    converted(torch_backend.functions, model)
    assert type(first) is not DeepseekV32Indexer and type(second) is Inferring
    got, count = rotated(torch, lambda: model(tokens).logits)
    assert count == 3 * 2  # queries and keys of two attentions and of one indexer
    assert modes == [False, False]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4 * expected.abs().max().item())


def reasons(torch_backend, model, capsys):
    torch_backend.functions.convert(model)
    return capsys.readouterr().out


def test_a_module_with_other_parts_is_skipped(torch_backend, torch, capsys):
    """The kernel does not support the module's parts."""
    model = FAMILIES["bert"].build(hidden_act="quick_gelu")
    printed = reasons(torch_backend, model, capsys)
    assert "kept BertIntermediate (2): activation QuickGELUActivation is not among those of the kernel" in printed
    model = FAMILIES["gpt2"].build()

    class Adapter(torch.nn.Linear):
        pass

    model.transformer.h[0].mlp.c_fc = Adapter(64, 96)
    model.transformer.h[1].ln_2 = torch.nn.Identity()
    printed = reasons(torch_backend, model, capsys)
    assert f"kept GPT2MLP 'transformer.h.0.mlp': its product is a {__name__}.Adapter" in printed
    assert "kept GPT2Block 'transformer.h.1': its ln_2 is not one of fusedops's" in printed


def test_a_product_without_a_bias(torch_backend, torch, models, random):
    model = FAMILIES["phi"].build("float32", torch_backend.device)
    for layer in model.model.layers:
        layer.mlp.fc1.register_parameter("bias", None)
    inputs = models.batch(random, torch_backend.device)
    exact = models.exact_results(model, inputs)
    plain = models.arrays(models.results(model, inputs))
    converted(torch_backend.functions, model)
    x = torch.ones(1, 3, model.config.hidden_size, device=torch_backend.device)
    assert "FusedopsLinearBackward" in operators(model.model.layers[0].mlp(x))
    assert_as_accurate(models.arrays(models.results(model, inputs)), plain, exact, "float32")


def test_a_part_that_is_exchanged_later_is_called(torch_backend, torch, random):
    """An adapter replaces parts; hooks of the present part are called."""
    model = FAMILIES["gpt2"].build("float64", torch_backend.device)
    converted(torch_backend.functions, model)
    plain = copy.deepcopy(model)
    torch_backend.functions.revert(plain)
    first, second = model.transformer.h[0].mlp, model.transformer.h[1].mlp
    calls = []

    class Adapter(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base

        def forward(self, x):
            calls.append("adapter")
            return self.base(x)

    first.c_fc = Adapter(first.c_fc)
    second.c_fc.register_forward_hook(lambda module, args, result: calls.append("product"))
    second.act.register_forward_pre_hook(lambda module, args: calls.append("activation"))
    tokens = torch.from_numpy(random.integers(0, 128, (ROWS, LENGTH))).to(torch_backend.device)
    got, expected = model(tokens).logits, plain(tokens).logits
    assert calls == ["adapter", "product", "activation"]
    assert_close(torch, [got], [expected])


def test_a_subclass_of_a_layer_of_ours_is_called(torch_backend, torch, random):
    """Also in a block, which otherwise adds and normalizes in one pass."""

    class Twice(torch_backend.functions.nn.LayerNorm):
        def forward(self, x):
            return 2 * super().forward(x)

    model = FAMILIES["gpt2"].build("float64", torch_backend.device)
    model.transformer.h[0].ln_2.__class__ = Twice
    tokens = torch.from_numpy(random.integers(0, 128, (ROWS, LENGTH))).to(torch_backend.device)
    plain = model(tokens).logits
    converted(torch_backend.functions, model)
    assert_close(torch, [model(tokens).logits], [plain])
    model.transformer.h[1].ln_2.__class__ = Twice  # replaced after the conversion
    got = model(tokens).logits
    torch_backend.functions.revert(model)
    assert_close(torch, [got], [model(tokens).logits])


def test_attention_to_an_encoder(torch_backend, torch, random):
    """Cross-attention runs transformers' own code, in a block converted for calls without an encoder."""
    model = FAMILIES["gpt2"].build("float64", torch_backend.device, add_cross_attention=True)
    tokens = torch.from_numpy(random.integers(0, 128, (ROWS, LENGTH))).to(torch_backend.device)
    encoded = torch.from_numpy(random.normal(size=(ROWS, 5, 64))).to(torch_backend.device)
    inputs = [{"input_ids": tokens}, {"input_ids": tokens, "encoder_hidden_states": encoded}]
    plain = [model(**given).logits for given in inputs]
    converted(torch_backend.functions, model)
    assert_close(torch, [model(**given).logits for given in inputs], plain)
    assert not np.allclose(*(logits.detach().cpu() for logits in plain))
    without = FAMILIES["gpt2"].build(device=torch_backend.device)
    converted(torch_backend.functions, without)
    with pytest.raises(ValueError, match="has to be instantiated with cross-attention layers"):
        without(**{**inputs[1], "encoder_hidden_states": encoded.float()})


@pytest.mark.parametrize("up", [0.5, "sparse"])
def test_a_gate_times_an_unsupported_factor(torch_backend, torch, up):
    from fusedops.torch.conversion.hf.mlp import gated

    gate = torch.randn(3, 4, device=torch_backend.device)
    up = gate.to_sparse() if up == "sparse" else up
    got, expected = gated(torch.nn.SiLU(), gate, up), torch.nn.functional.silu(gate) * up
    assert torch.equal(*(x.to_dense() if x.is_sparse else x for x in (got, expected)))


def test_layers_of_a_projection(torch_backend, torch, transformers):
    """Moshi's depth decoder has weights for many layers; a call selects one, or one for each position."""
    from transformers.models.moshi import modeling_moshi

    fo = torch_backend.functions
    config = transformers.MoshiDepthConfig(hidden_size=8, ffn_dim=16, num_codebooks=3)
    mlp = modeling_moshi.MoshiGatingMLP(config, use_flexible_linear=True).to(torch_backend.device)
    for parameter in mlp.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 3, 8, device=torch_backend.device)
    layers = torch.arange(3, device=torch_backend.device)
    expected = [mlp(x), mlp(x[:, :1], layers[1:2])]
    model = converted(fo, torch.nn.Sequential(mlp))
    assert type(model[0]) is not modeling_moshi.MoshiGatingMLP
    for got, wanted in zip((model[0](x), model[0](x[:, :1], layers[1:2])), expected, strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_subclass_of_no_grad_is_skipped(torch_backend, torch):
    from fusedops.torch.conversion.hf.code import without_no_grad

    def plain():
        pass

    class Own(torch.no_grad):
        pass

    assert without_no_grad(torch.no_grad()(plain))[0] is plain
    for context in (Own(), torch.enable_grad(), torch.inference_mode()):
        decorated = context(plain)
        assert without_no_grad(decorated)[0] is decorated
