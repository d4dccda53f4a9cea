"""Layers that add the weight's gradient to weight.main_grad: Linear, losses of a head, torch's own after `convert`."""

from __future__ import annotations

import copy
import re

import pytest

from tests.helpers.converting import converted
from tests.helpers.hugging_face import FAMILIES
from tests.helpers.torch_functions import operators

TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


@pytest.fixture
def torch(torch_backend):
    return torch_backend.torch


def give_main_grads(torch, model):
    """Sets main_grad on the weights of linear layers, like Megatron-LM."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            wide = torch.promote_types(module.weight.dtype, torch.float32)
            module.weight.main_grad = torch.zeros_like(module.weight, dtype=wide)
    return model


def summed(torch, layer, batches):
    """The gradients of all parameters, accumulated by autograd in the layer's dtype."""
    layer.zero_grad()
    for x in batches:
        layer(x).square().sum().backward()
    return [p.grad for p in layer.parameters()]


@pytest.mark.parametrize("activation", ["identity", "relu", "gelu"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(16, 24), (3, 5, 24), (24,), (0, 24)], ids=str)
def test_linear(torch_backend, torch, fo, dtype, activation, bias, shape):
    kind = {"device": torch_backend.device, "dtype": getattr(torch, dtype)}
    layer = fo.nn.Linear(24, 40, bias=bias, activation=activation, **kind)
    exact = copy.deepcopy(layer).double()
    batches = [torch.randn(shape, **kind, requires_grad=True) for _ in range(3)]
    wide = [x.detach().double().requires_grad_() for x in batches]
    expected = summed(torch, exact, wide)
    give_main_grads(torch, layer)
    found = summed(torch, layer, batches)
    assert layer.weight.grad is None and found[0] is None
    tolerance = TOLERANCES[dtype]
    limit = tolerance * max(1, float(expected[0].abs().max())) if expected[0].numel() else 0
    torch.testing.assert_close(layer.weight.main_grad.double(), expected[0], rtol=tolerance, atol=limit)
    for x, y in zip(batches, wide, strict=True):
        limit_of_x = tolerance * max([1.0, *y.grad.abs().flatten().tolist()])
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=tolerance, atol=limit_of_x)
    if bias:
        torch.testing.assert_close(found[1].double(), expected[1], rtol=tolerance, atol=limit)


def test_gradient_of_the_input(torch_backend, torch, fo):
    layer = give_main_grads(torch, fo.nn.Linear(6, 5, activation="gelu", device=torch_backend.device).double())
    x = torch.randn(4, 6, dtype=torch.float64, device=torch_backend.device, requires_grad=True)
    assert torch.autograd.gradcheck(layer, x)
    with pytest.raises(RuntimeError, match="a weight with a main_grad has no double backward"):
        torch.autograd.grad(layer(x).sum(), x, create_graph=True)


def test_small_gradients_are_not_lost(torch_backend, torch, fo):
    """Sums in bfloat16 stop growing at 256 times the added value."""
    layer = fo.nn.Linear(8, 8, bias=False, device=torch_backend.device, dtype=torch.bfloat16)
    give_main_grads(torch, layer)
    x = torch.ones(1, 8, device=torch_backend.device, dtype=torch.bfloat16)
    for _ in range(1000):
        layer(x).sum().backward()
    assert (layer.weight.main_grad == 1000).all()


def test_autocast(torch_backend, torch, fo):
    layer = give_main_grads(torch, fo.nn.Linear(8, 16, device=torch_backend.device))
    x = torch.randn(4, 8, device=torch_backend.device, requires_grad=True)
    with torch.autocast(torch_backend.device, torch.bfloat16):
        y = layer(x)
    assert y.dtype is torch.bfloat16
    y.float().sum().backward()
    expected = torch.ones(16, 4, device=torch_backend.device) @ x.detach().bfloat16().float()
    torch.testing.assert_close(layer.weight.main_grad, expected)
    assert (x.grad.dtype, layer.bias.grad.dtype) == (torch.float32, torch.float32)


def test_without_a_gradient(torch_backend, torch, fo):
    layer = give_main_grads(torch, fo.nn.Linear(8, 16, device=torch_backend.device))
    x = torch.randn(4, 8, device=torch_backend.device, requires_grad=True)
    with torch.no_grad():
        assert not layer(x).requires_grad
    layer.weight.requires_grad_(False)
    layer(x).sum().backward()
    assert x.grad is not None and (layer.weight.main_grad == 0).all()


def test_hooks_see_the_finished_gradient(torch_backend, torch, fo):
    """Megatron-LM's hook on a weight is called once its gradient is present, and reads its location."""
    layer, seen = give_main_grads(torch, fo.nn.Linear(8, 16, device=torch_backend.device)), []
    layer.weight.grad_added_to_main_grad = False
    layer.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad_added_to_main_grad))
    x = torch.randn(4, 8, device=torch_backend.device)
    layer(x).sum().backward()
    assert seen == [True] and (layer.weight.grad == 0).all()
    torch.testing.assert_close(layer.weight.main_grad, torch.ones(16, 1, device=x.device) @ x.sum(0)[None])


@pytest.mark.parametrize(
    "main_grad, sentence",
    [
        (lambda torch, weight: weight.new_zeros(8, 8), "got of float32 and shape [8, 8] on"),
        (lambda torch, weight: weight.new_zeros(16, 8, device="meta"), "got of float32 and shape [16, 8] on meta"),
        (lambda torch, weight: weight.new_zeros(16, 8, requires_grad=True), "with requires_grad=True"),
        (lambda torch, weight: weight.new_zeros(16, 8).to_sparse(), "one of layout torch.sparse_coo"),
    ],
)
def test_refused(torch_backend, torch, fo, main_grad, sentence):
    layer = fo.nn.Linear(8, 16, device=torch_backend.device)
    layer.weight.main_grad = main_grad(torch, layer.weight.detach())
    with pytest.raises(ValueError, match=re.escape(sentence)):
        layer(torch.randn(4, 8, device=torch_backend.device))


@pytest.mark.parametrize("x", [(4, 8), (8,)], ids=str)
def test_a_main_grad_that_is_removed(torch_backend, torch, fo, x):
    """The backward raises an error, after a forward of a matrix or a vector."""
    layer = give_main_grads(torch, fo.nn.Linear(8, 16, device=torch_backend.device))
    y = layer(torch.randn(x, device=torch_backend.device, requires_grad=True))
    total = layer.weight.main_grad
    del layer.weight.main_grad
    with pytest.raises(ValueError, match=r"nn\.Linear: weight\.main_grad must be a strided .* got none; keep the one"):
        y.sum().backward()
    assert (total == 0).all() and layer.weight.grad is None


@pytest.mark.parametrize("name", ["Linear", "LinearCrossEntropyLoss"])
@pytest.mark.parametrize("uses", [1, 2])
def test_streams(torch_gpu, uses, name):
    """backward() waits for forwards on other streams, and serializes their writes, as for grad."""
    torch, fo = torch_gpu.torch, torch_gpu.functions
    layer = give_main_grads(torch, getattr(fo.nn, name)(1024, 1024, bias=False, device="cuda"))
    weight = layer.weight if name == "Linear" else layer.linear.weight
    inputs = [torch.ones(2048, 1024, device="cuda")]
    if name != "Linear":
        inputs.append(torch.arange(2048, device="cuda") % 1024)
    older = layer(*inputs)  # holds the weight's autograd node, which belongs to the default stream
    older.sum().backward(retain_graph=True)
    once = weight.main_grad.clone()
    assert once.any()
    streams = [torch.cuda.Stream() for _ in range(uses)]

    def slow(gradient):
        torch.cuda._sleep(200_000_000)
        return gradient

    for repeat in range(3):
        torch.cuda.synchronize()
        weight.main_grad.zero_()
        losses = []
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                y = layer(*inputs)
                y.register_hook(slow)
                losses.append(y.sum())
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        sum(losses).backward()
        seen = weight.main_grad.clone()
        torch.cuda.synchronize()
        assert torch.equal(seen, uses * once), repeat
        assert torch.equal(seen, weight.main_grad)


@pytest.mark.parametrize("total", [0, "bfloat16"])
def test_a_16_bit_main_grad_is_left_to_the_program(torch_backend, torch, fo, total):
    """Megatron-LM has one if it does not accumulate in float32."""
    layer = fo.nn.Linear(8, 16, device=torch_backend.device)
    layer.weight.main_grad = total if total == 0 else torch.zeros_like(layer.weight, dtype=getattr(torch, total))
    layer(torch.ones(4, 8, device=torch_backend.device)).sum().backward()
    assert (layer.weight.grad == 4).all()
    assert total == 0 or (layer.weight.main_grad == 0).all()


def test_main_grad_changes_only_when_grad_would(torch_backend, torch, fo):
    """Calls that do not accumulate into grad."""
    layer = give_main_grads(torch, fo.nn.Linear(8, 16, device=torch_backend.device))
    weight, bias = layer.weight, layer.bias
    x = torch.ones(4, 8, device=torch_backend.device, requires_grad=True)
    torch.autograd.grad(layer(x).sum(), x)
    layer(x).sum().backward(inputs=[x, bias])
    (dweight,) = torch.autograd.grad(layer(x).sum(), weight)
    assert (dweight == 4).all() and (weight.main_grad == 0).all() and weight.grad is None
    layer(x).sum().backward(inputs=[weight])
    assert (weight.main_grad == 4).all() and weight.grad is None


def test_a_tied_weight(torch_backend, torch, fo):
    """The embedding's gradient is in grad, also if hooks are called."""
    layer = give_main_grads(torch, fo.nn.Linear(8, 16, bias=False, device=torch_backend.device))
    layer.weight.grad_added_to_main_grad = False
    tokens = torch.arange(4, device=torch_backend.device)
    with torch.autograd.detect_anomaly(check_nan=True):
        layer(torch.nn.functional.embedding(tokens, layer.weight)).sum().backward()
    expected = torch.zeros_like(layer.weight)
    expected[:4] = layer.weight.detach().sum(0)
    torch.testing.assert_close(layer.weight.grad, expected)


def test_norms_are_fused(torch_backend, torch, fo):
    """Megatron-LM gives all parameters a main_grad."""
    norm = fo.nn.RMSNorm(8, device=torch_backend.device)
    norm.weight.main_grad = torch.zeros_like(norm.weight)
    from fusedops.torch.internals import is_watched

    assert not is_watched(norm)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints(torch_backend, torch, fo, use_reentrant):
    """Tensors that a checkpoint recomputes for the backward are other objects."""
    layer = give_main_grads(torch, fo.nn.Linear(8, 16, activation="gelu", device=torch_backend.device))
    x = torch.randn(4, 8, device=torch_backend.device, requires_grad=True)
    layer(x).sum().backward()
    expected = layer.weight.main_grad.clone()
    torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=use_reentrant).sum().backward()
    assert torch.equal(layer.weight.main_grad, 2 * expected)


def test_programs_without_effects(torch_backend, torch, fo):
    """Those of torch.func and torch.jit: their gradients are in grad, or returned."""
    layer = give_main_grads(torch, fo.nn.Linear(8, 16, device=torch_backend.device))
    x = torch.randn(4, 8, device=torch_backend.device)
    expected = torch.ones(16, 1, device=x.device) @ x.sum(0)[None]
    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    found = torch.func.grad(lambda p: torch.func.functional_call(layer, p, (x,)).sum())(parameters)
    torch.testing.assert_close(found["weight"], expected)
    torch.testing.assert_close(torch.func.grad(lambda x: layer(x).sum())(x), layer.weight.sum(0).expand(4, 8))
    traced = torch.jit.trace(layer, x)
    traced(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, expected)
    assert (layer.weight.main_grad == 0).all()


@pytest.mark.parametrize("name", ["llama", "bert", "phi3"])
def test_convert(torch_backend, torch, fo, transformers, name):
    """All products of a model, including those that other layers would fuse with the following operation."""
    model = FAMILIES[name].build("float64", torch_backend.device)
    inputs = {"input_ids": torch.arange(12, device=torch_backend.device)[None]}
    model(**inputs).logits.square().sum().backward()
    expected = {key: p.grad for key, p in model.named_parameters()}
    model.zero_grad()
    converted(fo, give_main_grads(torch, model))
    for _ in range(2):
        model(**inputs).logits.square().sum().backward()
    weights = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Linear)}
    tied = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    assert weights
    for key, p in model.named_parameters():
        if expected[key] is None:
            continue
        found = p.main_grad if id(p) in weights else p.grad
        if id(p) in weights & tied:
            found = p.main_grad + p.grad
        scale = float(expected[key].abs().max())
        assert torch.allclose(found, 2 * expected[key], rtol=1e-4, atol=1e-5 * scale + 1e-9), key
        assert id(p) not in weights - tied or p.grad is None, key


def test_convert_without_main_grads(torch_backend, torch, fo, capsys):
    layer = torch.nn.Linear(8, 16, device=torch_backend.device)
    model = torch.nn.Sequential(layer, torch.nn.LayerNorm(16, device=torch_backend.device))
    fo.convert(model)
    assert type(layer) is torch.nn.Linear
    layer.weight.main_grad = torch.zeros_like(layer.weight)
    fo.convert(model)
    assert "1 Linear -> fusedops.torch.conversion.linear.PlainLinear" in capsys.readouterr().out
    got = model(torch.randn(4, 8, device=torch_backend.device))
    got.sum().backward()
    assert layer.weight.grad is None
    fo.revert(model)
    assert type(layer) is torch.nn.Linear and operators(layer(torch.randn(4, 8, device=torch_backend.device))) == set()


def test_compiled(torch_backend, torch, fo):
    layer = give_main_grads(torch, fo.nn.Linear(8, 16, activation="gelu", device=torch_backend.device))
    x = torch.randn(4, 8, device=torch_backend.device)
    layer(x).sum().backward()
    expected = layer.weight.main_grad.clone()
    torch.compile(lambda x: layer(x) * 2, backend="eager")(x).sum().backward()
    torch.testing.assert_close(layer.weight.main_grad, 3 * expected)


# ---- losses of a linear head, without logits ----

OPERATOR = "FusedopsLinearCrossEntropyBackward"


@pytest.fixture
def head(torch_backend, torch, fo):
    """A loss of 40 classes whose head has a main_grad."""
    torch.manual_seed(0)
    return give_main_grads(torch, fo.nn.LinearCrossEntropyLoss(24, 40, bias=True, device=torch_backend.device))


@pytest.fixture
def batch(torch_backend, torch):
    x = torch.randn(3, 5, 24, device=torch_backend.device, requires_grad=True)
    return x, torch.arange(15, device=torch_backend.device).reshape(3, 5)


def of_autograd(torch, loss, *inputs):
    """The gradient of the head's weight, as a float32 tensor."""
    return torch.autograd.grad(loss(*inputs), loss.linear.weight)[0].float()


def test_parts_of_a_loss(torch_backend, torch, fo, dtype):
    """Each part's gradient is rounded to the dtype, and the sum is not."""
    kind = {"device": torch_backend.device, "dtype": getattr(torch, dtype)}
    torch.manual_seed(0)
    loss = fo.nn.LinearCrossEntropyLoss(24, 40, bias=True, softcap=3.0, **kind)
    exact = copy.deepcopy(loss).double()
    target = torch.arange(15, device=torch_backend.device)
    parts = [torch.randn(15, 24, **kind, requires_grad=True) for _ in range(16)]
    for x in parts:
        wide = x.detach().double().requires_grad_()
        exact(wide, target).backward()
    give_main_grads(torch, loss)
    rounded = torch.zeros_like(loss.linear.weight.main_grad)
    for x in parts:
        rounded += torch.autograd.grad(loss(x, target), loss.linear.weight)[0]
        got = loss(x, target)
        assert operators(got) == {OPERATOR}
        got.backward()
    weight = loss.linear.weight
    assert weight.grad is None
    torch.testing.assert_close(weight.main_grad, rounded, rtol=1e-6, atol=1e-6 * float(rounded.abs().max()))
    for found, expected in ((weight.main_grad, exact.linear.weight.grad), (x.grad, wide.grad)):
        limit = TOLERANCES[dtype] * float(expected.abs().max())
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=limit)


def test_a_loss_under_autocast(torch_backend, torch, head, batch):
    with torch.autocast(torch_backend.device, torch.bfloat16):
        expected = of_autograd(torch, head, *batch)
        got = head(*batch)
    got.backward()
    assert expected.any() and torch.equal(head.linear.weight.main_grad, expected)


def test_main_grad_of_a_loss_changes_only_when_grad_would(torch, head, batch):
    weight, bias, x = head.linear.weight, head.linear.bias, batch[0]
    torch.autograd.grad(head(*batch), x)
    head(*batch).backward(inputs=[x, bias])
    expected = of_autograd(torch, head, *batch)
    with torch.no_grad():
        head(*batch)
    weight.requires_grad_(False)
    head(*batch).backward()
    weight.requires_grad_(True)
    found = torch.func.grad(lambda w: torch.func.functional_call(head, {"linear.weight": w}, batch))(weight.detach())
    torch.testing.assert_close(found, expected)
    assert expected.any() and not weight.main_grad.any() and weight.grad is None
    head(*batch).backward(inputs=[weight])
    assert torch.equal(weight.main_grad, expected) and weight.grad is None


def test_hooks_after_a_loss(torch, head, batch):
    seen, weight = [], head.linear.weight
    expected = of_autograd(torch, head, *batch)
    weight.grad_added_to_main_grad = False
    weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad_added_to_main_grad))
    head(*batch).backward()
    assert seen == [True] and not weight.grad.any() and torch.equal(weight.main_grad, expected)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_second_derivatives_of_a_loss(torch, head, batch):
    """Those that go through the gradient of the input are added. That of main_grad itself is refused."""
    x, target = batch
    weight, plain = head.linear.weight, copy.deepcopy(head)  # which has no main_grad
    for loss in (plain, head):
        (dx,) = torch.autograd.grad(loss(x, target), x, create_graph=True)
        dx.square().sum().backward(inputs=[loss.linear.weight])
    torch.testing.assert_close(weight.main_grad, plain.linear.weight.grad)
    (dweight,) = torch.autograd.grad(head(x, target), weight, create_graph=True)
    assert dweight.requires_grad
    before = weight.main_grad.clone()
    with pytest.raises(RuntimeError, match="linear_cross_entropy: a weight with a main_grad has no double backward"):
        head(x, target).backward(create_graph=True)
    assert before.any() and torch.equal(weight.main_grad, before)


def test_a_loss_refuses(torch, head, batch):
    """A main_grad of another shape in the forward, and a removed one in the backward."""
    weight = head.linear.weight
    total, got = weight.main_grad, head(*batch)
    del weight.main_grad
    with pytest.raises(ValueError, match=r"fusedops\.linear_cross_entropy: weight\.main_grad must .* got none"):
        got.backward()
    assert not total.any() and weight.grad is None
    weight.main_grad = total[:8]
    with pytest.raises(ValueError, match=r"fusedops\.linear_cross_entropy: .*; got of float32 and shape \[8, 24\] on"):
        head(*batch)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_loss_in_a_checkpoint(torch, head, batch, use_reentrant):
    expected = of_autograd(torch, head, *batch)
    torch.utils.checkpoint.checkpoint(head, *batch, use_reentrant=use_reentrant).backward()
    assert expected.any() and torch.equal(head.linear.weight.main_grad, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_loss(torch, head, batch, backend):
    expected = of_autograd(torch, head, *batch)
    torch.compile(lambda x, target: head(2 * x / 2, target), backend=backend)(*batch).backward()
    assert expected.any() and head.linear.weight.grad is None
    torch.testing.assert_close(head.linear.weight.main_grad, expected)


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_fused_loss(torch_backend, torch, fo, transformers, capsys, is_tied):
    """Two parts of a model without logits: also where the embedding has the same weight, and its gradient in grad."""
    model = FAMILIES["llama"].build("float64", torch_backend.device).train()
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    if is_tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    parts = torch.arange(24, device=torch_backend.device).reshape(2, 1, 12)
    for tokens in parts:
        model(tokens, labels=tokens).loss.backward()
    expected = {key: p.grad.clone() for key, p in model.named_parameters()}
    model.zero_grad()
    fo.convert(give_main_grads(torch, model), fuse_loss=True)
    assert "returns no logits in training with labels" in capsys.readouterr().out
    for tokens in parts:
        got = model(tokens, labels=tokens)
        got.loss.backward()
        assert got.logits is None
    weight = model.lm_head.weight
    assert weight.main_grad.any() and (weight.grad is not None) == is_tied
    for key, p in model.named_parameters():
        found = sum(each for each in (p.grad, getattr(p, "main_grad", None)) if each is not None)
        scale = float(expected[key].abs().max())  # transformers' norms compute in float32
        assert (found - expected[key]).abs().max() <= 1e-5 * scale, key


def test_a_compiled_model_with_a_fused_loss(torch_backend, torch, fo, transformers):
    """Only its head has a main_grad: each one breaks the graph."""
    model = FAMILIES["llama"].build("float32", torch_backend.device).train()
    give_main_grads(torch, torch.nn.ModuleList([model.lm_head]))
    converted(fo, model, "LlamaForCausalLM", fuse_loss=True)
    weight, tokens = model.lm_head.weight, torch.arange(12, device=torch_backend.device)[None]
    model(tokens, labels=tokens).loss.backward()
    expected = weight.main_grad.clone()
    got = torch.compile(model, backend="eager")(tokens, labels=tokens)
    got.loss.backward()
    assert got.logits is None and expected.any() and weight.grad is None
    torch.testing.assert_close(weight.main_grad, 2 * expected)
