"""Converted models with peft adapters and quantized layers: replaced parts are called, all others are fused."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.helpers.accuracy import assert_as_accurate
from tests.helpers.converting import converted
from tests.helpers.hugging_face import FAMILIES, Family

TARGETS = {
    "attention": ["q_proj", "v_proj"],
    "MLP": ["gate_proj", "down_proj"],
    "all and the head": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"],
}


@pytest.fixture
def peft(transformers):
    if find_spec("peft") is None:
        pytest.skip("peft is not installed")
    import peft

    return peft


def adapted(peft, torch_backend, model, targets, **options):
    """The model with nonzero adapters."""
    torch_backend.torch.manual_seed(0)
    return peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM", **options)
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("order", ["convert first", "adapt first"])
def test_lora(torch_backend, peft, models, random, order, targets, dtype):
    """Loss, logits and the gradients of the adapters, which alone require gradients."""
    model = FAMILIES["llama"].build(dtype, torch_backend.device)
    inputs = models.batch(random, torch_backend.device)
    if order == "convert first":
        converted(torch_backend.functions, model)
    model = adapted(peft, torch_backend, model, TARGETS[targets])
    if order == "adapt first":
        converted(torch_backend.functions, model)
    assert hasattr(type(model.base_model.model.model.layers[0].mlp), "mixin")
    got = models.arrays(models.results(model, inputs))
    torch_backend.functions.revert(model)
    exact = models.exact_results(model, inputs)
    plain = models.arrays(models.results(model, inputs))
    assert len(got) == 2 + 2 * (2 * len(TARGETS[targets]) - (targets == "all and the head"))
    assert_as_accurate(got, plain, exact, dtype)


@pytest.mark.parametrize("order", ["convert first", "adapt first", "by name"])
@pytest.mark.parametrize("name", ["qwen3_moe", pytest.param("gpt_oss", marks=pytest.mark.slow)])
def test_lora_of_experts(torch_backend, fo, peft, models, random, name, order):
    """Adapters of the experts' stacked matrices, which are added to them for each call."""
    model = Family(name).build("float32", torch_backend.device)
    inputs = models.batch(random, torch_backend.device)
    if order == "convert first":
        converted(fo, model)
    model = adapted(peft, torch_backend, model, [], target_parameters=["experts.gate_up_proj", "experts.down_proj"])
    if order == "adapt first":
        converted(fo, model)
    if order == "by name":  # without `convert`
        model.set_experts_implementation("fusedops")
    with torch_backend.torch.profiler.profile() as profile:
        got = models.arrays(models.results(model, inputs))
    assert {"fusedops::experts", "fusedops::experts_backward"} <= {event.key for event in profile.key_averages()}
    fo.revert(model).set_experts_implementation("grouped_mm")
    exact, plain = models.exact_results(model, inputs), models.arrays(models.results(model, inputs))
    assert len(got) == 2 + 2 * 4  # two matrices of an adapter, of two parameters in two layers
    assert_as_accurate(got, plain, exact, "float32")


def test_adapters_that_come_and_go(torch_backend, torch, fo, peft, models, random, tmp_path):
    """The converted model computes the original's results with adapters disabled, merged, saved and loaded, and
    removed."""
    inputs = models.batch(random, torch_backend.device)
    found = []
    for convert in (False, True):
        model = FAMILIES["llama"].build("float32", torch_backend.device)
        if convert:
            converted(fo, model)
        model = adapted(peft, torch_backend, model, TARGETS["MLP"]).eval()
        with torch.no_grad():
            results = [model(**inputs).loss]
            with model.disable_adapter():
                results.append(model(**inputs).loss)
            model.save_pretrained(tmp_path / str(convert))
            results.append(model.merge_and_unload()(**inputs).loss)
            base = FAMILIES["llama"].build("float32", torch_backend.device)
            loaded = peft.PeftModel.from_pretrained(base, tmp_path / str(convert))
            if convert:
                converted(fo, loaded)
            results.append(loaded(**inputs).loss)
        found.append(torch.stack(results))
    torch.testing.assert_close(*found)
    with_adapter, without, merged, loaded = found[0]
    torch.testing.assert_close(torch.stack([merged, loaded]), with_adapter.expand(2))
    assert (without - with_adapter).abs() > 1e-3


def test_training_with_dropout_and_checkpoints(torch_backend, torch, fo, peft, models, random):
    """Only the adapters drop elements, with fusedops's dropout; a checkpoint drops the same again."""
    inputs = models.batch(random, torch_backend.device)
    model = converted(fo, FAMILIES["llama"].build("float32", torch_backend.device))
    model = adapted(peft, torch_backend, model, TARGETS["attention"], lora_dropout=0.5).train()
    converted(fo, model)  # the adapters' modules
    results = []
    for checkpointed in (False, True):
        if checkpointed:
            model.enable_input_require_grads()
            model.gradient_checkpointing_enable({"use_reentrant": False})
        results.append(models.results(model, inputs))
    torch.testing.assert_close(*results)


def test_a_head_with_an_adapter_has_logits(torch_backend, fo, peft, models, random, capsys):
    """Its loss is computed from logits, like that of an unconverted head."""
    inputs = models.batch(random, torch_backend.device)
    for targets, reason in ((["q_proj"], None), (["q_proj", "lm_head"], "its head is a peft.tuners.lora.layer.Linear")):
        model = adapted(peft, torch_backend, FAMILIES["llama"].build(device=torch_backend.device), targets).train()
        plain = model(**inputs).loss
        fo.convert(model, fuse_loss=True)
        printed = capsys.readouterr().out
        output = model(**inputs)
        assert (output.logits is None) == (reason is None)
        assert reason is None or f"the logits of LlamaForCausalLM are computed in training: {reason}" in printed
        torch_backend.torch.testing.assert_close(output.loss, plain)


def test_an_adapter_in_a_sequential(torch_backend, torch, fo, peft, capsys):
    """The adapter is called. Once it is merged, its layer and the following activation are one operator again."""
    with torch.device(torch_backend.device):
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
        x = torch.ones(2, 8)
    config = peft.LoraConfig(r=2, target_modules=["0"], init_lora_weights=False)
    model = peft.get_peft_model(converted(fo, model), config)
    got = model(x)
    torch.testing.assert_close(fo.revert(model)(x), got)
    fo.convert(model)
    reason = "its product is a peft.tuners.lora.layer.Linear"
    assert f"kept Sequential 'base_model.model': {reason}" in capsys.readouterr().out
    merged = converted(fo, model.merge_and_unload())
    torch.testing.assert_close(merged(x), got)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization:DeprecationWarning", "ignore:torch.quantize:UserWarning")
def test_quantized_layers(torch_cpu, transformers, models, random, capsys):
    """torch's own quantized layers, 8-bit on a CPU, quantized before or after the conversion."""
    torch, fo = torch_cpu.torch, torch_cpu.functions

    def quantized(model):
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)

    inputs = models.batch(random)
    with torch.no_grad():
        plain = quantized(FAMILIES["llama"].build())(**inputs)
        before = fo.convert(quantized(FAMILIES["llama"].build()), fuse_loss=True)
        kind = "torch.ao.nn.quantized.dynamic.modules.linear.Linear"
        assert f"are computed in training: its head is a {kind}" in capsys.readouterr().out
        after = quantized(converted(fo, FAMILIES["llama"].build()))
        for model in (before, after):
            assert hasattr(type(model.model.layers[0].mlp), "mixin")
            limit = 2**-7 * plain.logits.abs().max()  # the change of a value that is rounded to another 8-bit number
            torch.testing.assert_close(model(**inputs).logits, plain.logits, rtol=0, atol=limit)
    layers = quantized(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8)))
    fo.convert(layers)
    assert f"kept Sequential 'Sequential': its product is a {kind}" in capsys.readouterr().out
