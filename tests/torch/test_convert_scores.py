"""fusedops.torch.convert of transformers' attentions that compute scores, softmax and products in their own code."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest

from tests.helpers.converting import converted

BATCH, LENGTH, WIDTH, HEADS = 2, 7, 32, 4


def attention(name, args, **config):
    """An attention of transformers, by its module and class. `...` among the arguments stands for its config."""
    family, _, kind = name.partition(".")
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    fields = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_heads": HEADS, "qkv_bias": True, "bias": True}
    fields |= {"has_relative_attention_bias": False, "has_spatial_attention_bias": False}
    rates = dict.fromkeys(("attention_dropout", "attention_probs_dropout_prob", "dropout", "resid_dropout"), 0.0)
    config = SimpleNamespace(**{**fields, **rates, **config})
    return getattr(module, kind)(*(config if each is ... else each for each in args))


# Products and steps: the attention, its arguments, its config, and the arguments of its call after the hidden states.
CASES = {
    "matmul": ("mobilevit.MobileViTSelfAttention", (..., WIDTH), {}, lambda causal: ()),
    "an added mask": ("canine.CanineSelfAttention", (...,), {}, lambda causal: (None, causal)),
    "bmm, joined heads": (
        "groupvit.GroupViTAttention",
        (...,),
        {},
        lambda causal: (causal.expand(BATCH, -1, -1, -1),),
    ),
    "einsum": (
        "prophetnet.ProphetNetAttention",
        (..., HEADS),
        {},
        lambda causal: (None, causal[:, :, 3:4].expand(BATCH, HEADS, -1, -1)),
    ),
    "masked_fill in a method": ("bark.BarkSelfAttention", (..., True, 0), {"block_size": 16}, lambda causal: ()),
    "where": (
        "gpt_neo.GPTNeoSelfAttention",
        (..., "global", 0),
        {"max_position_embeddings": 16},
        lambda causal: (causal,),
    ),
    "in place": ("flaubert.MultiHeadAttention", (HEADS, WIDTH, ...), {}, lambda causal: (causal[0, 0, :BATCH] == 0,)),
    "a bias, a scale for each head, windows": (
        "swinv2.Swinv2SelfAttention",
        (..., WIDTH, HEADS, (1, LENGTH)),
        {},
        lambda causal: (causal[0],),
    ),
    "a sum into the result": (
        "nystromformer.NystromformerSelfAttention",
        (...,),
        {"num_landmarks": LENGTH, "segment_means_seq_len": LENGTH, "conv_kernel_size": 3}
        | {"inv_coeff_init_option": False},
        lambda causal: (causal,),
    ),
    "torch's attention": ("aimv2.Aimv2AttentionPoolingHead", (...,), {}, lambda causal: ()),
}
_FLOAT32 = ("where", "in place")  # computed in float32 in any case


def causality(torch, x):
    """The mask that is added to scores, [1, 1, T, T]."""
    lowest = torch.finfo(x.dtype).min
    return torch.full((LENGTH, LENGTH), lowest, dtype=x.dtype, device=x.device).triu(1)[None, None]


@pytest.fixture
def calls(torch_backend, monkeypatch):
    """The options of every call of the operator."""
    found, function = [], torch_backend.functions.attention

    def recording(*inputs, **options):
        found.append(options)
        return function(*inputs, **options)

    monkeypatch.setattr(torch_backend.functions, "attention", recording)
    return found


@pytest.fixture
def case(request, torch_backend, transformers):
    """An attention with random weights, and the arguments of its call."""
    name, args, config, others = CASES[request.param]
    torch = torch_backend.torch
    torch.manual_seed(0)
    dtype = torch.float32 if request.param in _FLOAT32 else torch.float64
    module = attention(name, args, **config).to(torch_backend.device, dtype)
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=WIDTH**-0.5)
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=dtype, device=torch_backend.device, requires_grad=True)
    inputs = [x, *others(causality(torch, x))]
    if name.startswith("canine"):
        inputs[1] = x  # keys
    return SimpleNamespace(module=module.eval(), inputs=inputs, torch=torch)


def results(case, run):
    """The first result, and the gradients of the inputs and weights that it depends on."""
    found = run(*case.inputs)
    y = found[0] if isinstance(found, tuple) else found
    slope = case.torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view_as(y)
    wanted = [case.inputs[0], *case.module.parameters()]
    gradients = case.torch.autograd.grad((y * slope).sum(), wanted, allow_unused=True)
    return [y, *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_results_and_gradients(torch_backend, case, calls):
    """Eager and compiled in one graph, by one call of the operator; `revert` brings the bits back."""
    from torch._dynamo.testing import CompileCounter

    plain = results(case, case.module)
    converted(torch_backend.functions, case.module)
    case.torch.compiler.reset()
    eps = case.torch.finfo(plain[0].dtype).eps
    rounding = eps * max(expected.abs().max().item() for expected in plain)  # that of a key's bias is zero but for it
    counter = CompileCounter()  # fullgraph=True would let the graph read tensors
    for run in (case.module, case.torch.compile(case.module, backend=counter)):
        calls.clear()
        for got, expected in zip(results(case, run), plain, strict=True):
            case.torch.testing.assert_close(got, expected, rtol=0, atol=100 * rounding)
        assert len(calls) == 1
    assert counter.frame_count == 1
    torch_backend.functions.revert(case.module)
    assert all(got.equal(expected) for got, expected in zip(results(case, case.module), plain, strict=True))


@pytest.mark.parametrize("case", ["masked_fill in a method"], indirect=True)
def test_probabilities_are_returned_only_if_they_are_asked_for(torch_backend, case):
    x = case.inputs[0]
    plain = case.module(x, output_attentions=True)[1]
    converted(torch_backend.functions, case.module)
    assert case.module(x)[1] is None
    case.torch.testing.assert_close(case.module(x, output_attentions=True)[1], plain)
    case.module.config = SimpleNamespace(output_attentions=True)
    case.torch.testing.assert_close(case.module(x)[1], plain)


@pytest.mark.parametrize("case", ["matmul"], indirect=True)
def test_dropout(torch_backend, case, calls):
    torch, module = case.torch, converted(torch_backend.functions, case.module)
    module.dropout.p = 0.5

    def result(seed):
        torch.manual_seed(seed)
        return module(case.inputs[0])

    module.train()
    first = result(0)
    assert result(0).equal(first) and not result(1).equal(first)
    assert {options["dropout"] for options in calls} == {0.5}
    module.eval()
    assert result(0).equal(result(1)) and calls[-1]["dropout"] == 0


def test_another_step_keeps_the_bits(torch_backend, transformers, calls):
    """The scores are computed where code between the products reads them."""
    torch = torch_backend.torch
    module = attention("layoutlmv3.LayoutLMv3SelfAttention", (...,)).to(torch_backend.device)
    x = torch.randn(BATCH, LENGTH, WIDTH, device=torch_backend.device)
    plain = module(x)
    converted(torch_backend.functions, module)
    assert all(got.equal(expected) for got, expected in zip(module(x, output_attentions=True), plain, strict=True))
    assert not calls


def test_a_product_that_is_no_attention_is_returned(torch_backend, transformers):
    from fusedops.torch.conversion.hf import deferred

    torch = torch_backend.torch
    x = torch.randn(BATCH, LENGTH, WIDTH, device=torch_backend.device)
    forward = deferred._without_deferred(lambda self, x: (deferred._product(torch.matmul, x, x.mT), None))
    assert forward(None, x)[0].equal(x @ x.mT)
