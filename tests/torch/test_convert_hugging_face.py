"""Further uses of a converted model of transformers: saving, copying, hooks, checkpoints, losses."""

from __future__ import annotations

import copy
import importlib
import io
from collections import Counter

import numpy as np
import pytest

from tests.helpers.converting import converted
from tests.helpers.hugging_face import FAMILIES
from tests.helpers.running import ROOT, python


@pytest.fixture
def llama(torch_backend, transformers):
    return FAMILIES["llama"].build(device=torch_backend.device)


@pytest.fixture
def inputs(torch_backend, models, random):
    return models.batch(random, torch_backend.device)


def kinds(model):
    return [type(module) for module in model.modules()]


def assert_close(got, expected):
    """Equal except for the last bits of float32: a kernel was called in another place, or not called."""
    for x, y in zip(got, expected, strict=True):
        x, y = x.detach().cpu(), y.detach().cpu()
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5 * y.abs().max().item())


def test_the_guide_shows_what_is_printed(torch_cpu, fo, transformers, capsys):
    config = transformers.LlamaConfig(num_hidden_layers=2, hidden_size=512, intermediate_size=1376)
    with torch_cpu.torch.device("meta"):  # the report needs no numbers
        llama = transformers.LlamaForCausalLM(config)
    fo.convert(llama)
    printed = capsys.readouterr().out
    assert printed.startswith("fusedops: 13 of 30 modules of 'LlamaForCausalLM' replaced")
    assert printed in (ROOT / "docs/converting.md").read_text(encoding="utf-8")
    fo.convert(llama)
    assert "0 of 30 modules of 'LlamaForCausalLM' replaced, 13 are fusedops's already" in capsys.readouterr().out


# Calls of each kernel in the forward of 2 layers; a block's second norm is fused with the preceding sum.
_MIXTURE = {"attention": 2, "add_rms_norm": 2, "cross_entropy": 1}
_ALL = {**_MIXTURE, "gated_act": 2}
KERNELS = {
    "llama": {**_ALL, "rms_norm": 3, "rope": 4},
    "mixtral": {**_MIXTURE, "experts": 2, "rms_norm": 3, "rope": 4},
    "qwen3": {**_ALL, "rms_norm": 3, "rms_norm_rope": 4},
    "gemma2": {**_ALL, "rms_norm": 7, "rope": 4},
    "gemma3": {**_ALL, "rms_norm": 7, "rms_norm_rope": 4},
}


# On a GPU the preceding products are computed as well.
WITH_PRODUCTS = {"linear": "bias_act", "gated_linear": "gated_act"}


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_are_called(torch_backend, fo, transformers, inputs, name):
    from torch.utils._python_dispatch import TorchDispatchMode

    calls = Counter()

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.namespace == "fusedops":
                name = function._opname
                calls[WITH_PRODUCTS.get(name, name)] += 1
            return function(*args, **(kwargs or {}))

    model = FAMILIES[name].build(device=torch_backend.device)
    with Counting():
        model(**inputs)
        assert not calls
        converted(fo, model)
        model(**inputs)
    assert calls == KERNELS[name]


def test_saved_as_pretrained(fo, llama, inputs, transformers, tmp_path):
    converted(fo, llama)
    llama.save_pretrained(tmp_path)
    assert transformers.AutoConfig.from_pretrained(tmp_path).architectures == ["LlamaForCausalLM"]
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).to(llama.device)
    assert type(loaded) is transformers.LlamaForCausalLM
    converted(fo, loaded)
    assert loaded(**inputs).logits.equal(llama(**inputs).logits)


def test_pickled_and_copied(torch_backend, fo, llama, inputs):
    torch = torch_backend.torch
    converted(fo, llama)
    file = io.BytesIO()
    torch.save(llama, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(llama)):
        assert kinds(other) == kinds(llama)
        assert other(**inputs).logits.equal(llama(**inputs).logits)


@pytest.mark.slow
def test_loaded_by_another_process(torch_backend, fo, llama, inputs, tmp_path):
    converted(fo, llama)
    torch_backend.torch.save((llama, inputs, llama(**inputs).logits), tmp_path / "model.pt")
    code = """
import os, torch, fusedops.torch
torch.set_num_threads(1)
model, inputs, logits = torch.load(os.environ["FILE"], weights_only=False)
assert model(**inputs).logits.equal(logits)
fusedops.torch.convert(model)
"""
    process = python(code, FILE=str(tmp_path / "model.pt"))
    assert process.returncode == 0, process.stderr
    assert "13 are fusedops's already" in process.stdout


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(fo, models, llama, inputs, use_reentrant):
    llama.train()
    converted(fo, llama)
    plain, calls = models.results(llama, inputs), []
    # The last transformers for Python 3.10 has only the second name.
    enable = getattr(llama, "activation_checkpointing_enable", None) or llama.gradient_checkpointing_enable
    enable({"use_reentrant": use_reentrant})
    for layer in llama.model.layers:
        layer.mlp.register_forward_pre_hook(lambda *_: calls.append(None))
    got = models.results(llama, inputs)
    assert len(calls) == 2 * len(llama.model.layers)  # the backward recomputes them
    assert_close(got, plain)


def test_hidden_states_and_attentions(fo, llama, inputs):
    llama.set_attn_implementation("eager")
    plain = llama(**inputs, output_hidden_states=True, output_attentions=True)
    converted(fo, llama)
    got = llama(**inputs, output_hidden_states=True, output_attentions=True)
    assert (len(got.hidden_states), len(got.attentions)) == (3, 2)
    assert_close((*got.hidden_states, *got.attentions), (*plain.hidden_states, *plain.attentions))
    llama.set_attn_implementation("sdpa")  # transformers asks the class for its module
    assert_close([llama(**inputs).logits], [plain.logits])


@pytest.mark.parametrize("name", ["layers.0.post_attention_layernorm", "layers.1.mlp.act_fn"])
def test_hooks_of_what_the_kernels_compute_as_well_are_called(fo, llama, inputs, name):
    seen = []
    llama.model.get_submodule(name).register_forward_hook(lambda module, given, result: seen.append(result))
    plain = llama(**inputs).logits
    converted(fo, llama)
    got = llama(**inputs).logits
    assert len(seen) == 2
    assert_close([got, seen[1]], [plain, seen[0]])


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_norms_of_queries_that_the_kernel_does_not_compute(torch_backend, fo, transformers, inputs, name):
    """Norms with hooks or of another class are called with the shapes of the original, and the result is the same."""
    model = FAMILIES[name].build(device=torch_backend.device)
    shapes = []
    model.model.layers[0].self_attn.q_norm.register_forward_hook(lambda module, given, out: shapes.append(out.shape))
    plain = model(**inputs).logits
    norm = model.model.layers[1].self_attn.k_norm
    converted(fo, model)
    fo.revert(norm)
    torch_backend.torch.testing.assert_close(model(**inputs).logits, plain, rtol=1e-4, atol=1e-5)
    assert len(shapes) == 2 and shapes[0] == shapes[1]


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_hooks_of_all_modules_are_called(torch_backend, fo, transformers, inputs, name):
    """torch's global module hooks."""
    model = FAMILIES[name].build(device=torch_backend.device)
    names = {module: path for path, module in model.named_modules()}
    seen = []
    hooks = torch_backend.torch.nn.modules.module
    handle = hooks.register_module_forward_hook(lambda module, *_: seen.append(names.get(module)))
    try:
        plain = model(**inputs).logits
        called = sorted(filter(None, seen))
        seen.clear()
        converted(fo, model)
        got = model(**inputs).logits
    finally:
        handle.remove()
    assert sorted(filter(None, seen)) == called
    assert_close([got], [plain])


def test_arguments_that_a_block_refuses(torch_backend, fo, llama):
    layer = converted(fo, llama).model.layers[0]
    x = torch_backend.torch.randn(2, 5, 64, device=llama.device)
    for refused in (layer, super(type(layer), layer)):
        with pytest.raises(TypeError):
            refused.forward(x, *range(7))
        with pytest.raises(TypeError):
            refused.forward(x, None, attention_mask=None)


def test_arguments_by_position(torch_backend, fo, llama):
    torch = torch_backend.torch
    layer = llama.model.layers[0]
    x, positions = torch.randn(2, 5, 64, device=llama.device), torch.arange(5, device=llama.device)[None]
    angles = llama.model.rotary_emb(x, positions)
    calls = (
        lambda: layer(x, None, positions, None, False, angles),
        lambda: layer(hidden_states=x, position_embeddings=angles),
    )
    plain = [call() for call in calls]
    converted(fo, llama)
    assert_close([call() for call in calls], plain)


def test_norms_that_were_kept_need_no_block(fo, llama, inputs, transformers, capsys):
    kind = type(llama.model.norm)

    class Mine(kind):
        pass

    llama.model.layers[0].post_attention_layernorm.__class__ = Mine
    plain = llama(**inputs).logits
    fo.convert(llama)
    printed = capsys.readouterr().out
    assert "kept Mine 'model.layers.0.post_attention_layernorm': a subclass of LlamaRMSNorm" in printed
    reason = "its post_attention_layernorm is not one of fusedops's"
    assert f"kept LlamaDecoderLayer 'model.layers.0': {reason}" in printed
    assert_close([llama(**inputs).logits], [plain])


def test_other_versions_of_transformers(fo, llama, capsys, monkeypatch):
    """A class of a known name with more code, a module that lacks an attribute, a replaced function."""
    from fusedops.torch.conversion import hf
    from fusedops.torch.conversion.hf import residual

    modeling = importlib.import_module(type(llama).__module__)

    class LlamaMLP(modeling.LlamaMLP):
        def forward(self, x):
            down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) - self.up_proj(x))
            return down_proj

    LlamaMLP.__module__, LlamaMLP.__qualname__ = modeling.__name__, "LlamaMLP"
    first, second = llama.model.layers
    first.mlp.__class__ = LlamaMLP
    del second.mlp.act_fn
    del second.input_layernorm.variance_epsilon
    monkeypatch.setattr(modeling, "apply_rotary_pos_emb", modeling.repeat_kv)
    monkeypatch.delattr(residual, "PreNormBlock")
    monkeypatch.setattr(hf, "_made", {})
    fo.convert(llama)
    printed = capsys.readouterr().out
    for sentence in (
        "LlamaMLP 'model.layers.0.mlp': a subclass of LlamaMLP, which may compute something else; it differs from "
        "LlamaMLP in line 2: down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) - self.up_proj(x))",
        "LlamaMLP 'model.layers.1.mlp': it has no attribute act_fn",
        "input_layernorm': it has no attribute variance_epsilon",
        "LlamaDecoderLayer (2): this version of transformers is not known: module",
        "LlamaAttention (2): its apply_rotary_pos_emb differs from ",
    ):
        assert sentence in printed


def test_a_missing_part(fo, llama, capsys):
    converted(fo, llama)
    del llama.model.layers[0].mlp.act_fn
    fo.convert(llama)
    printed = capsys.readouterr().out
    assert "12 are fusedops's already" in printed
    assert "kept LlamaMLP 'model.layers.0.mlp': it has no attribute act_fn" in printed


def test_a_class_is_examined_again_after_a_temporary_change(torch_cpu, transformers, monkeypatch):
    """The verdict on a class without converted instances is not cached."""
    from transformers.models.mistral import modeling_mistral

    from fusedops.torch.conversion import hf

    monkeypatch.setattr(hf, "_made", {})
    with monkeypatch.context() as context:
        context.setattr(modeling_mistral, "apply_rotary_pos_emb", lambda *arguments: arguments[:2])
        kept = converted(torch_cpu.functions, FAMILIES["mistral"].build())
    replaced = converted(torch_cpu.functions, FAMILIES["mistral"].build())
    assert type(kept.model.layers[0].self_attn) is modeling_mistral.MistralAttention
    assert "forward" in vars(type(replaced.model.layers[0].self_attn))


def test_loaded_where_transformers_is_of_another_version(fo, llama, inputs, monkeypatch):
    from fusedops.torch.conversion import hf
    from fusedops.torch.conversion.hf import residual

    converted(fo, llama)
    kind = type(llama.model.layers[0]).original
    monkeypatch.setattr(hf, "_made", {})
    monkeypatch.delattr(residual, "PreNormBlock")
    other = copy.deepcopy(llama)
    assert type(other.model.layers[0]) is kind
    assert_close([other(**inputs).logits], [llama(**inputs).logits])


@pytest.mark.parametrize("of_weight", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("of_input", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama.modeling_llama.Llama", "gemma.modeling_gemma.Gemma"])
def test_norms_of_mixed_dtypes(torch_backend, fo, transformers, name, of_input, of_weight):
    torch = torch_backend.torch
    module, _, prefix = f"transformers.models.{name}".rpartition(".")
    norm = getattr(importlib.import_module(module), f"{prefix}RMSNorm")(32)
    norm = norm.to(torch_backend.device, getattr(torch, of_weight))
    x = torch.randn(3, 32, dtype=getattr(torch, of_input), device=torch_backend.device)
    plain = norm(x)
    assert type(converted(fo, norm)) is not type(norm).original
    coarsest = torch.bfloat16 if "bfloat16" in (of_input, of_weight) else torch.float32  # transformers rounds to it
    torch.testing.assert_close(norm(x), plain, rtol=4 * torch.finfo(coarsest).eps, atol=0)  # of the same dtype, too


@pytest.mark.parametrize("activation", ["silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu"])
def test_activations(torch_backend, fo, inputs, activation):
    model = FAMILIES["llama"].build(device=torch_backend.device, hidden_act=activation)
    plain = model(**inputs).logits
    converted(fo, model)
    assert_close([model(**inputs).logits], [plain])


def test_an_activation_without_a_kernel(fo, transformers, capsys):
    fo.convert(FAMILIES["llama"].build(hidden_act="quick_gelu"))
    sentence = "kept LlamaMLP (2): activation QuickGELUActivation is not among those of the kernel"
    assert sentence in capsys.readouterr().out


def test_rotations_without_a_kernel(torch_backend, transformers):
    """Angles with a gradient, and angles that are not repeated."""
    torch = torch_backend.torch
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    from fusedops.torch.conversion.hf.rotary import fused

    q, k = (torch.randn(2, heads, 6, 8, device=torch_backend.device) for heads in (4, 2))
    cos, sin = (torch.randn(1, 6, 4, device=torch_backend.device).repeat(1, 1, 2) for _ in range(2))
    unequal = torch.cat((cos[..., :4], 2 * cos[..., :4]), -1)
    for given in ((q, k, cos.clone().requires_grad_(), sin), (q, k, unequal, sin)):
        for x, y in zip(fused(apply_rotary_pos_emb)(*given), apply_rotary_pos_emb(*given), strict=True):
            assert x.equal(y)


@pytest.mark.parametrize("options", [{}, {"num_items_in_batch": 100}], ids=str)
def test_the_loss_has_the_same_dtype(fo, llama, inputs, options):
    for move in (llama.double, llama.float, llama.bfloat16):
        model = fo.revert(move())
        expected = model(**inputs, **options).loss
        assert converted(fo, model)(**inputs, **options).loss.dtype is expected.dtype


def test_loss_options(torch_backend, fo, models, llama, inputs):
    torch = torch_backend.torch
    count = torch.tensor(100, device=llama.device)
    shifted = inputs["labels"].roll(-1, 1)
    shifted[:, 4] = -100
    options = (
        {"num_items_in_batch": count},
        {"num_items_in_batch": 100},
        {"ignore_index": 3},
        {"shift_labels": shifted},
    )

    def losses():
        return [llama(**inputs, **given).loss for given in options]

    plain = losses()
    converted(fo, llama)
    assert_close(losses(), plain)


def test_the_loss_of_a_masked_model(torch_backend, transformers, random):
    torch = torch_backend.torch
    from transformers.loss.loss_utils import ForMaskedLMLoss

    from fusedops.torch.conversion.hf.loss import masked_loss

    logits = torch_backend.tensor(random.normal(size=(3, 5, 33)), "float32")
    labels = torch_backend.tensor(random.integers(0, 33, (3, 5)), "int64")
    labels[:, 1:3] = -100
    for given in ({}, {"num_items_in_batch": 4}):
        torch.testing.assert_close(
            masked_loss(logits, labels, 33, **given), ForMaskedLMLoss(logits, labels, 33, **given)
        )
    if torch_backend.device == "cpu":
        labels[0, 0] = 33
        for loss in (masked_loss, ForMaskedLMLoss):
            with pytest.raises(IndexError, match="Target 33 is out of bounds"):
                loss(logits, labels, 33)


def test_a_loss_of_somebodys_own_stays(fo, llama, inputs, capsys):
    def mine(logits, labels, vocab_size, **kwargs):
        return logits.sum()

    converted(fo, llama)
    llama.loss_function = mine
    assert llama.loss_function is mine
    assert llama(**inputs).loss.equal(llama(**inputs).logits.sum())
    fo.revert(llama)
    assert llama.loss_function is mine
    fo.convert(llama)
    assert "kept LlamaForCausalLM 'LlamaForCausalLM': its loss_function is mine" in capsys.readouterr().out


def test_the_loss_of_a_mixtures_router_is_added(torch_backend, fo, models, transformers, inputs):
    model = FAMILIES["mixtral"].build(device=torch_backend.device, output_router_logits=True)
    plain = models.results(model, inputs)
    converted(fo, model)
    assert_close(models.results(model, inputs), plain)


def test_models_that_nobody_converted_stay(fo, llama, inputs):
    other = copy.deepcopy(llama)
    plain, before = other(**inputs).logits, kinds(other)
    converted(fo, llama)
    llama(**inputs)
    assert other(**inputs).logits.equal(plain)
    assert kinds(other) == before
