"""fusedops.torch.convert of every known family of transformers' models: same accuracy in training and generation."""

from __future__ import annotations

import inspect
from functools import partial

import numpy as np
import pytest

from tests.helpers.accuracy import assert_as_accurate, assert_losses_overlap
from tests.helpers.converting import converted
from tests.helpers.hugging_face import FAMILIES, SLOW, STEPPED
from tests.helpers.numerics import assert_same_bits


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in FAMILIES])
def family(request, transformers):
    return FAMILIES[request.param]


def classes(model):
    return [type(module) for module in model.modules()]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("padded", [False, True])
def test_results_are_as_accurate_and_revert_brings_the_bits_back(torch_backend, models, family, padded, dtype, random):
    # The family's default is torch's attention, if it supports it.
    model = family.build(dtype, torch_backend.device, attn_implementation="eager" if padded else None)
    inputs = models.batch(random, torch_backend.device, padded)
    exact = models.exact_results(model, inputs)
    before, state = classes(model), model.state_dict()
    plain = models.arrays(models.results(model, inputs))
    assert converted(torch_backend.functions, model) is model
    assert classes(model) != before
    assert all(isinstance(module, kind) for module, kind in zip(model.modules(), before, strict=True))
    assert model.state_dict().keys() == state.keys()
    assert_as_accurate(models.arrays(models.results(model, inputs)), plain, exact, dtype)
    assert torch_backend.functions.revert(model) is model
    assert classes(model) == before
    for got, expected in zip(
        models.arrays(models.outputs(model, inputs)), plain, strict=False
    ):  # a GPU's gradients may differ
        assert_same_bits(got, expected)


@pytest.mark.parametrize("name", STEPPED)
def test_step_by_step(torch_cpu, transformers, name):
    """The step-by-step comparison of the script `make families ARGS=--check`, which runs on all families."""
    from audits.families import equality

    verdict = equality.compare(name)
    assert verdict["converted"]
    assert not verdict["faults"]


def test_the_comparison_finds_a_difference(torch_cpu, transformers):
    """The comparison fails for a model with other results."""
    from audits.families import equality

    model = FAMILIES["llama"].build()
    other = FAMILIES["llama"].build(rms_norm_eps=1e-3)
    inputs = equality.inputs_of(model)
    found = [equality.difference(got, plain) for got, plain in equality.steps(other, model, inputs)]
    assert min(found) > equality.LIMIT


def test_modules_are_called_by_the_same_names(torch_cpu, family):
    """A counterpart accepts the same keyword arguments as transformers' module, such as `hidden_states=`."""
    model = converted(torch_cpu.functions, family.build())
    for module in model.modules():
        kind = getattr(type(module), "original", None)
        if kind:
            got, expected = (
                next(iter(inspect.signature(of.forward.__get__(module)).parameters)) for of in (type(module), kind)
            )
            assert got == expected, kind


def test_training_goes_on_as_before(torch_backend, models, family, random):
    """50 steps; one model is converted after a few, and keeps its optimizer. Dropout is off, since a converted model
    drops other elements."""
    from tests.helpers.torch_training import losses_of_steps

    torch, batches = torch_backend.torch, [models.batch(random, torch_backend.device) for _ in range(5)]

    def losses(convert):
        model = family.build(device=torch_backend.device).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return losses_of_steps(model, lambda step: model(**batches[step % len(batches)]).loss, 50, 1e-3, convert)

    plain = losses(convert=None)
    assert_losses_overlap(losses(partial(converted, torch_backend.functions)), plain, "float32", steps=50)
    assert plain[-1] < plain[0] - 1


def test_the_same_text_is_written(torch_backend, models, family, random):
    model = family.build(device=torch_backend.device)
    inputs = models.batch(random, torch_backend.device, padded=True)
    prompt = {"input_ids": inputs["input_ids"], "attention_mask": inputs["attention_mask"]}
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    plain = model.generate(**prompt, **options)
    converted(torch_backend.functions, model)
    assert model.generate(**prompt, **options).equal(plain)
    assert plain.shape[1] == models.LENGTH + 12


@pytest.mark.parametrize("name", ["bert", "gemma2", "gpt2", "llama", "phi3", "qwen3"])
def test_autocast(torch_backend, models, transformers, name, random):
    torch = torch_backend.torch
    model = FAMILIES[name].build(device=torch_backend.device)
    inputs = models.batch(random, torch_backend.device)
    exact = models.exact_results(model, inputs)
    with torch.autocast(torch_backend.device, torch.bfloat16):
        plain = models.arrays(models.results(model, inputs))
        converted(torch_backend.functions, model)
        assert_as_accurate(models.arrays(models.results(model, inputs)), plain, exact, "bfloat16")


@pytest.mark.parametrize("name", ["bert", "gemma2", "gpt2", "llama", "phi3", "qwen3"])
def test_compiled_as_one_graph(torch_backend, models, transformers, name, random):
    model = FAMILIES[name].build(device=torch_backend.device)
    inputs = models.batch(random, torch_backend.device)
    converted(torch_backend.functions, model)
    plain = models.arrays(models.results(model, inputs))
    compiled = models.arrays(models.results(torch_backend.traced(model), inputs))
    # The gradient of a key bias is zero except for rounding, since softmax is invariant to a common offset of scores.
    rounding = 1e-7 * max(np.abs(expected).max() for expected in plain)
    for got, expected in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=max(1e-6 * np.abs(expected).max(), rounding))
