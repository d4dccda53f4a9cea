"""The PyTorch layers with dropout: torch's own in evaluation, and in training the functions, with torch's generator."""

from __future__ import annotations

import copy
import io
import pickle
import re

import numpy as np
import pytest

RATE = 0.25
LAYERS = ("Dropout", "DropoutAdd", "AddRMSNorm", "AddLayerNorm")
SHAPE = (64, 48)
ALL = pytest.mark.parametrize("name", LAYERS)


@pytest.fixture(autouse=True)
def kernel_of_any_size(monkeypatch):
    from fusedops.torch.nn import dropout

    monkeypatch.setattr(dropout, "_FEWEST_ON_GPU", 0)


def layer_of(fnn, name, rate=RATE):
    return getattr(fnn, name)(SHAPE[-1], dropout=rate) if name.startswith("Add") else getattr(fnn, name)(rate)


def tensors(backend, name, dtype="float32"):
    torch = backend.torch
    x = torch.linspace(1, 2, SHAPE[0] * SHAPE[1], device=backend.device).view(SHAPE)
    inputs = [x.to(getattr(torch, dtype)), (3 * x.cos()).to(getattr(torch, dtype))]
    return [each.requires_grad_() for each in (inputs[:1] if name == "Dropout" else inputs)]


def outputs(layer, inputs):
    result = layer(*inputs)
    return result if isinstance(result, tuple) else (result,)


def run(torch, layer, inputs, seed=3):
    """The outputs and the gradients of the inputs, with this seed."""
    torch.manual_seed(seed)
    results = outputs(layer, inputs)
    upstream = [torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape).to(y.dtype) for y in results]
    return [y.detach() for y in results] + [*torch.autograd.grad(results, inputs, upstream)]


def assert_equal(torch, got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def function_of(fo, layer, name):
    """The layer as a call of the public function."""
    weights = [weight.detach() for weight in layer.parameters()]
    return {
        "Dropout": lambda x: fo.dropout(x, RATE),
        "DropoutAdd": lambda x, residual: fo.dropout_add(x, residual, RATE),
        "AddRMSNorm": lambda x, residual: fo.add_rms_norm(x, residual, *weights, eps=layer._eps(x), dropout=RATE),
        "AddLayerNorm": lambda x, residual: fo.add_layer_norm(x, residual, *weights, dropout=RATE),
    }[name]


@ALL
def test_training_equals_the_function(torch_backend, torch, fo, fnn, name, dtype):
    """Its random numbers come from torch's generator: the same state gives the same result. The function's own tests
    verify what it drops."""
    layer = layer_of(fnn, name).to(torch_backend.device, getattr(torch, dtype))
    inputs = tensors(torch_backend, name, dtype)
    got = run(torch, layer, inputs)
    assert_equal(torch, got, run(torch, function_of(fo, layer, name), inputs))
    assert_equal(torch, got, run(torch, layer, inputs))
    assert any((x != y).any() for x, y in zip(got, run(torch, layer, inputs, seed=4), strict=True))


@ALL
def test_evaluation_equals_torch(torch_backend, torch, fnn, name):
    layer, inputs = layer_of(fnn, name).eval().to(torch_backend.device), tensors(torch_backend, name)
    state = torch.get_rng_state()
    if name == "Dropout":
        assert layer(*inputs) is inputs[0]
    elif name == "DropoutAdd":
        assert torch.equal(layer(*inputs), sum(inputs))
    else:
        assert_equal(torch, outputs(layer, inputs), outputs(layer_of(fnn, name, 0.0).to(inputs[0].device), inputs))
    assert torch.equal(torch.get_rng_state(), state)


def test_means_and_masks(torch_backend, torch, fnn):
    """The number of dropped elements follows a binomial distribution, and a gradient has its result's mask."""
    x = torch.ones(1000, 1000, device=torch_backend.device, requires_grad=True)
    y = fnn.Dropout(RATE)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y) and set(y.unique().tolist()) == {0.0, float(np.float32(1 / (1 - RATE)))}
    deviation = (RATE * (1 - RATE) / x.numel()) ** 0.5
    assert abs((y == 0).double().mean().item() - RATE) < 5 * deviation
    assert (fnn.Dropout(RATE)(x) != y).any()


@ALL
def test_autocast_and_two_dtypes(torch_backend, torch, fnn, name):
    """A layer computes in the dtype of its inputs; torch adds inputs of two dtypes."""
    device = torch_backend.device
    layer, inputs = layer_of(fnn, name).to(device), tensors(torch_backend, name)
    plain = run(torch, layer, inputs)
    with torch.autocast(device, torch.bfloat16):
        assert_equal(torch, run(torch, layer, inputs), plain)
    if name == "Dropout":
        return
    short = [inputs[0].detach().bfloat16().requires_grad_(), inputs[1]]
    got = run(torch, layer, short)
    assert [x.dtype for x in got[-2:]] == [torch.bfloat16, torch.float32]
    torch.manual_seed(3)
    s = fnn.Dropout(RATE)(short[0]) + short[1]
    assert torch.equal(got[-3], s)  # the sum, the last output


@ALL
def test_compiled_and_checkpointed(torch_backend, torch, fnn, name):
    """With the same seed, compiled code drops the same elements as eager code, in one graph; so does a checkpoint."""
    layer, inputs = layer_of(fnn, name).to(torch_backend.device), tensors(torch_backend, name)
    expected = run(torch, layer, inputs)
    assert_equal(torch, run(torch, torch_backend.traced(layer), inputs), expected)
    for use_reentrant in (False, True):
        checkpointed = lambda *x: torch.utils.checkpoint.checkpoint(layer, *x, use_reentrant=use_reentrant)  # noqa: B023, E731
        torch.manual_seed(3)
        results = checkpointed(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        for x in inputs:
            x.grad = None
        upstream = [torch.linspace(-1, 1, y.numel(), device=y.device).view(y.shape) for y in results]
        torch.autograd.backward(results, upstream)
        assert_equal(torch, [y.detach() for y in results] + [x.grad for x in inputs], expected)


@ALL
def test_state_text_and_copies(torch_backend, torch, fnn, name):
    layer, inputs = layer_of(fnn, name).to(torch_backend.device), tensors(torch_backend, name)
    expected = run(torch, layer, inputs)
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
        assert repr(other) == repr(layer) and f"={RATE}" in repr(layer)
        assert_equal(torch, run(torch, other, inputs), expected)
    plain = {"AddRMSNorm": "RMSNorm", "AddLayerNorm": "LayerNorm"}.get(name)
    of_torch = getattr(torch.nn, plain)(SHAPE[-1]) if plain else torch.nn.Dropout(RATE)
    assert layer.state_dict().keys() == of_torch.state_dict().keys()
    of_torch.load_state_dict(layer.state_dict())
    layer.load_state_dict(of_torch.state_dict())
    assert "dropout" not in repr(layer_of(fnn, name, 0.0)) or not plain


def test_calls_left_to_torch(torch_backend, torch, fnn):
    x = torch.linspace(1, 2, 24, device=torch_backend.device).view(4, 6)
    nested = torch.nested.nested_tensor(list(x), layout=torch.jagged)
    for options, given, reason in (
        ({"p": 0.0}, x, "p is 0: it drops nothing"),
        ({"p": 1.0}, x, "p is 1: it drops everything"),
        ({"p": RATE, "inplace": True}, x, "inplace is set"),
        ({"p": RATE}, nested, "the input is jagged"),
    ):
        layer, of_torch = fnn.Dropout(**options), torch.nn.Dropout(**options)
        assert layer.why_not(given) == reason and repr(layer) == repr(of_torch)
        results = []
        for each in (layer, of_torch):
            torch.manual_seed(5)
            y = each(given.clone())
            results.append(y.values() if y.is_nested else y)
        assert torch.equal(*results)
    y = x.clone()
    assert fnn.Dropout(RATE, inplace=True)(y) is y and (y == 0).any()
    assert torch.equal(fnn.DropoutAdd(1.0)(x, x), x) and torch.equal(fnn.DropoutAdd(0.0)(x, x), x + x)
    torch.manual_seed(5)
    spread = fnn.DropoutAdd(RATE)(x, x[0])
    torch.manual_seed(5)
    assert torch.equal(spread, fnn.Dropout(RATE)(x) + x[0])


def test_images_in_channels_last_stay_so(torch_cpu, torch, fnn):
    """torch's own dropout: the kernel's result would be a copy that the next convolution turns back."""
    layer, x = fnn.Dropout(RATE), torch.ones(2, 8, 3, 5)
    last = x.to(memory_format=torch.channels_last)
    assert layer.why_not(x) is None and layer.why_not(last) == "the input is in channels_last, which torch keeps"
    assert layer(x).is_contiguous() and layer(last).stride() == last.stride()
    assert torch.compile(layer, backend="aot_eager")(last).stride() == last.stride()


def test_small_tensors_on_a_gpu_are_left_to_torch(torch_gpu, monkeypatch):
    """They do not justify another launch; but the fused pass of a sum saves one."""
    from fusedops.torch.nn import dropout

    monkeypatch.setattr(dropout, "_FEWEST_ON_GPU", 100)
    torch, fnn = torch_gpu.torch, torch_gpu.functions.nn
    few, enough = torch.ones(99, device="cuda"), torch.ones(100, device="cuda")
    layer = fnn.Dropout(RATE)
    assert layer.why_not() is layer.why_not(enough) is layer.why_not(few.cpu()) is fnn.DropoutAdd().why_not(few) is None
    assert layer.why_not(few) == "on a GPU, torch's own kernel is as fast for so few elements"
    torch.manual_seed(0)
    y = layer(few)
    torch.manual_seed(0)
    assert torch.equal(y, torch.nn.functional.dropout(few, RATE))


def test_refused_rates(torch_cpu):
    fnn = torch_cpu.functions.nn
    for kind in (fnn.Dropout, fnn.DropoutAdd):
        with pytest.raises(ValueError, match=r"dropout probability has to be between 0 and 1, but got 1\.5"):
            kind(1.5)
    for kind in (fnn.AddRMSNorm, fnn.AddLayerNorm):
        for rate in (1.0, -0.1, float("nan")):
            sentence = f"fusedops.torch.nn.{kind.__name__}: dropout must be a probability in [0, 1); got {rate}"
            with pytest.raises(ValueError, match=re.escape(sentence)):
                kind(4, dropout=rate)


@ALL
def test_recorded_by_fx(torch_backend, torch, fnn, name):
    """A layer is one node, in training and evaluation, and the recorded module drops elements, too."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer_of(fnn, name)

        def forward(self, x, residual):
            return self.layer(x) if name == "Dropout" else self.layer(x, residual)

    model = Model().to(torch_backend.device)
    x, residual = tensors(torch_backend, "DropoutAdd")
    for training in (True, False):
        model.train(training)
        recorded = torch.fx.symbolic_trace(model)
        assert [node.op for node in recorded.graph.nodes].count("call_module") == 1
        results = []
        for each in (model, recorded):
            torch.manual_seed(1)
            results.append(each(x, residual))
        assert_equal(torch, results[1], results[0])
