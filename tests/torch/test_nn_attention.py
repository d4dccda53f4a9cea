"""fusedops.torch.nn.MultiheadAttention: torch's results, torch's state, and torch's own code for the rest."""

from __future__ import annotations

import copy
import inspect
import re

import pytest

from tests.helpers.accuracy import assert_as_accurate
from tests.helpers.converting import converted

WIDTH, HEADS, ROWS, QUERIES = 24, 3, 2, 5


LAYERS = {
    "plain": {},
    "batch_first": {"batch_first": True},
    "without bias": {"bias": False, "batch_first": True},
    "of other widths": {"kdim": 7, "vdim": 10, "batch_first": True},
    "of another vdim": {"vdim": 10, "bias": False},
}
MASKS = (
    *("none", "padding", "attn_mask", "of heads", "padding and attn_mask", "causal", "padding and causal"),
    *("attn_mask of numbers", "padding of numbers and attn_mask", "padding and of heads of numbers"),
)


def called(torch, layer, masks, keys, dtype, wide=False):
    """A layer's arguments: keys of another sequence, or None for the queries themselves."""
    torch.manual_seed(1)
    device, length = layer.out_proj.weight.device, keys or QUERIES

    def sequence(count, width):
        x = torch.randn(ROWS, count, width, device=device).to(dtype)
        x = x.double() if wide else x
        return (x if layer.batch_first else x.transpose(0, 1)).detach().requires_grad_()

    query = sequence(QUERIES, WIDTH)
    given = [query, query, query] if not keys else [query, sequence(keys, layer.kdim), sequence(keys, layer.vdim)]
    options = {}
    if "padding" in masks:
        options["key_padding_mask"] = torch.arange(length, device=device) >= torch.tensor(
            [[3], [length]], device=device
        )
    if "attn_mask" in masks:
        options["attn_mask"] = torch.rand(QUERIES, length, device=device) < 0.4
        options["attn_mask"][:, 0] = False  # a query without a key is NaN in torch
    if "of heads" in masks:
        options["attn_mask"] = torch.rand(ROWS * HEADS, QUERIES, length, device=device) < 0.4
        options["attn_mask"][..., 0] = False
    if "causal" in masks:
        options["attn_mask"] = torch.ones(QUERIES, length, dtype=torch.bool, device=device).triu(1)
        options["is_causal"] = True
    if "of numbers" in masks:
        for name in [name for name in options if name != "key_padding_mask" or "padding of numbers" in masks]:
            mask = options[name]
            options[name] = torch.randn(mask.shape, device=device, dtype=dtype).masked_fill(mask, -torch.inf)
            options[name] = options[name].double() if wide else options[name]
    return given, options


def results(layer, given, options):
    y, weights = layer(*given, need_weights=False, **options)
    assert weights is None
    inputs = {id(x): x for x in given}.values()
    layer.zero_grad()
    parameters = [p for p in layer.parameters() if p.requires_grad]
    y.sin().sum().backward(inputs=[*inputs, *parameters])
    found = [y, *(x.grad for x in (*inputs, *parameters))]
    for x in inputs:
        x.grad = None
    return [x.detach().double().cpu().numpy() for x in found]


@pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("name", LAYERS)
def test_results_are_as_accurate_as_torchs(torch_backend, torch, fnn, name, masks, dtype):
    dtype = getattr(torch, dtype)
    torch.manual_seed(0)
    layer = fnn.MultiheadAttention(WIDTH, HEADS, **LAYERS[name]).to(torch_backend.device, dtype)
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, **LAYERS[name]).to(torch_backend.device, dtype)
    theirs.load_state_dict(layer.state_dict())
    has_other_widths = not layer._qkv_same_embed_dim
    for keys in (7,) if has_other_widths and "causal" not in masks else (QUERIES,) if has_other_widths else (None, 7):
        if "causal" in masks and keys == 7:
            continue
        given, options = called(torch, layer, masks, keys, dtype)
        assert layer.why_not(*given, need_weights=False, **options) is None
        exact = results(copy.deepcopy(theirs).double(), *called(torch, layer, masks, keys, dtype, wide=True))
        plain = results(theirs, given, options)
        assert_as_accurate(results(layer, given, options), plain, exact, str(dtype).removeprefix("torch."))


def test_one_sequence(torch_backend, torch, fnn):
    layer = fnn.MultiheadAttention(WIDTH, HEADS).to(torch_backend.device)
    x = torch.randn(QUERIES, WIDTH, device=torch_backend.device)
    mask = torch.arange(QUERIES, device=torch_backend.device) > 3
    for options in ({}, {"key_padding_mask": mask}):
        assert layer.why_not(x, x, x, need_weights=False, **options) is None
        expected, _ = torch.nn.MultiheadAttention.forward(layer, x, x, x, need_weights=False, **options)
        torch.testing.assert_close(layer(x, x, x, need_weights=False, **options)[0], expected)


LEFT_TO_TORCH = {
    "the weights are asked for: need_weights is True": ({}, {"need_weights": True}),
    "add_bias_kv is True": ({"add_bias_kv": True}, {}),
    "add_zero_attn is True": ({"add_zero_attn": True}, {}),
    "attn_mask is float32 beside a query of float64": ({"dtype": "float64"}, {"attn_mask": "numbers"}),
    "key_padding_mask is float32 beside a query of float64": ({"dtype": "float64"}, {"key_padding_mask": "numbers"}),
    "is_causal is True, but there is no square attn_mask": ({}, {"attn_mask": "booleans", "is_causal": True}),
}


@pytest.mark.parametrize("sentence", LEFT_TO_TORCH)
def test_calls_left_to_torch_have_its_bits(torch_backend, torch, fnn, sentence):
    of_layer, options = LEFT_TO_TORCH[sentence]
    dtype = getattr(torch, of_layer.get("dtype", "float32"))
    layer = fnn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **{**of_layer, "dtype": dtype})
    layer = layer.to(torch_backend.device)
    x, other = (torch.randn(ROWS, n, WIDTH, device=torch_backend.device, dtype=dtype) for n in (QUERIES, 7))
    shape = (ROWS, 7) if "key_padding_mask" in options else (QUERIES, 7)
    numbers = torch.randn(shape, device=torch_backend.device)
    values = {"numbers": numbers, "booleans": numbers < 0}
    options = {"need_weights": False, **{name: values.get(value, value) for name, value in options.items()}}
    assert layer.why_not(x, other, other, **options) == sentence
    found = []
    for forward in (layer, lambda *given, **more: torch.nn.MultiheadAttention.forward(layer, *given, **more)):
        torch.manual_seed(0)
        found.append([y for y in forward(x, other, other, **options) if y is not None])
    assert all(got.equal(expected) for got, expected in zip(*found, strict=True))


def test_dropout_in_training(torch_backend, torch, fnn, fo):
    """Drops the elements that `attention` drops with the same seed, and none in evaluation."""
    layer = fnn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, batch_first=True).to(torch_backend.device)
    x = torch.randn(ROWS, QUERIES, WIDTH, device=torch_backend.device)
    assert layer.why_not(x, x, x, need_weights=False) is None
    torch.manual_seed(0)
    got = layer(x, x, x, need_weights=False)[0]
    torch.manual_seed(0)
    packed = torch.nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias)
    q, k, v = packed.view(ROWS, QUERIES, 3, HEADS, WIDTH // HEADS).unbind(2)
    expected = layer.out_proj(fo.attention(q, k, v, dropout=0.5).flatten(-2))
    torch.testing.assert_close(got, expected)
    assert not got.equal(layer(x, x, x, need_weights=False)[0])
    whole = layer.eval()(x, x, x, need_weights=False)[0]
    torch.testing.assert_close(whole, torch.nn.MultiheadAttention.forward(layer, x, x, x, need_weights=False)[0])


def test_errors_are_those_of_torch(torch_backend, torch, fnn):
    layer = fnn.MultiheadAttention(WIDTH, HEADS, batch_first=True).to(torch_backend.device)
    x, other = (torch.randn(ROWS, QUERIES, n, device=torch_backend.device) for n in (WIDTH, WIDTH - 1))
    mask = torch.ones(QUERIES, 9, dtype=torch.bool, device=torch_backend.device)
    for given, options in (((other, x, x), {}), ((x, x, x), {"attn_mask": mask})):
        with pytest.raises((AssertionError, RuntimeError)) as theirs:
            torch.nn.MultiheadAttention.forward(layer, *given, need_weights=False, **options)
        with pytest.raises(type(theirs.value), match=re.escape(str(theirs.value))):
            layer(*given, need_weights=False, **options)


def test_only_the_class_differs_from_torch(torch_backend, torch, fnn):
    of_torch = torch.nn.MultiheadAttention
    for function in ("__init__", "forward"):
        ours, theirs = (inspect.signature(getattr(kind, function)) for kind in (fnn.MultiheadAttention, of_torch))
        assert list(ours.parameters) == list(theirs.parameters)
    layer = of_torch(WIDTH, HEADS, kdim=4).to(torch_backend.device)
    state = copy.deepcopy(vars(layer))
    assert type(converted(torch_backend.functions, layer)) is fnn.MultiheadAttention
    assert vars(layer).keys() == state.keys()
    assert type(copy.deepcopy(layer)) is fnn.MultiheadAttention
    assert type(torch_backend.functions.revert(layer)) is of_torch


def test_within_a_layer_of_an_encoder(torch_backend, torch, fnn, capsys):
    model = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True).to(torch_backend.device)
    x = torch.randn(ROWS, QUERIES, WIDTH, device=torch_backend.device)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(QUERIES, device=torch_backend.device)
    calls = ({}, {"src_mask": mask, "is_causal": True})
    plain = [model(x, **options) for options in calls]
    torch_backend.functions.convert(model)
    assert "fusedops.torch.nn.attention.MultiheadAttention" in capsys.readouterr().out
    assert type(model.self_attn) is fnn.MultiheadAttention
    for options, expected in zip(calls, plain, strict=True):
        torch.testing.assert_close(model(x, **options), expected, rtol=1e-4, atol=1e-5)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, **options), expected, rtol=1e-4, atol=1e-5)
