"""Linear and GatedLinear: fused products, autocast, adapters, quantized weights and Llama's MLPs."""

from __future__ import annotations

import pytest

from tests.helpers.numerics import numbers
from tests.helpers.torch_functions import operators
from tests.helpers.torch_references import ACTIVATIONS


@pytest.fixture
def x(torch_backend, random):
    return torch_backend.from_numpy(numbers((4, 6, 8), random)).float()


@pytest.mark.parametrize("of_input", ["float64", "float32", "bfloat16"])
def test_autocast_is_that_of_torchs_layer(torch_backend, torch, fnn, x, of_input):
    """Also in the refused combination of float64 with other dtypes."""
    x = x.to(getattr(torch, of_input)).requires_grad_()
    dtype = torch.float64 if of_input == "float64" else torch.float32
    layer, own = (package.Linear(8, 5, device=x.device, dtype=dtype) for package in (fnn, torch.nn))
    own.load_state_dict(layer.state_dict())
    with torch.autocast(torch_backend.device, torch.bfloat16):
        found, expected = layer(x), own(x)
    assert found.dtype is expected.dtype is (torch.float64 if of_input == "float64" else torch.bfloat16)
    torch.testing.assert_close(found, expected)
    for got, wanted in zip(
        *(torch.autograd.grad(y.sum(), [x, *of.parameters()]) for y, of in ((found, layer), (expected, own))),
        strict=True,
    ):
        assert got.dtype is wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
    with torch.autocast(torch_backend.device, torch.bfloat16):
        gated = fnn.GatedLinear(8, 5, bias=True, device=x.device, dtype=dtype)(x)
    assert gated.dtype is found.dtype


def test_the_activation_is_in_the_product(torch, fnn, x):
    assert operators(fnn.Linear(8, 5, activation="gelu", device=x.device)(x)) == {"FusedopsLinearBackward"}
    assert operators(fnn.GatedLinear(8, 5, device=x.device)(x)) == {"FusedopsGatedLinearBackward"}


def test_every_activation(torch, fnn, x):
    """Calls left to torch give the results of fused ones."""
    for name in ("identity", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"):
        layer = fnn.Linear(8, 5, activation=name, device=x.device)
        torch.testing.assert_close(layer._of_torch(x), layer(x))


def test_parameter_names_equal_those_of_llamas_mlp(fnn):
    assert list(fnn.GatedLinear(8, 12).state_dict()) == ["gate_proj.weight", "up_proj.weight"]


@pytest.mark.parametrize("part", ["gate_proj", "up_proj"])
def test_a_projection_that_is_replaced_or_watched_is_called(torch, fnn, x, part):
    class Adapted(torch.nn.Linear):  # as by LoRA
        def forward(self, x):
            return super().forward(x) + 1

    layer = fnn.GatedLinear(8, 5, activation="gelu", device=x.device)
    before = layer(x)
    own = layer.get_submodule(part)
    seen = []
    handle = own.register_forward_hook(lambda *_: seen.append(part))
    assert layer.why_not(x) == f"{part} has a hook or a forward of its own"
    torch.testing.assert_close(layer(x), before)
    assert seen == [part]
    handle.remove()
    own.__class__ = Adapted
    assert layer.why_not(x) == layer.why_not() == f"{part} is a {__name__}.{Adapted.__qualname__}"
    torch.testing.assert_close(layer(x), ACTIVATIONS["gelu"](layer.gate_proj(x)) * layer.up_proj(x))


def test_weights_that_are_no_plain_tensors_are_left_to_torch(torch, fnn, x):
    from torch.testing._internal.two_tensor import TwoTensor

    layer = fnn.Linear(8, 5, activation="silu", device=x.device)
    expected = layer(x)
    plain = layer.weight.detach()
    layer.weight = torch.nn.Parameter(TwoTensor(plain, plain.clone()))
    assert layer.why_not(x) == "the weight is a TwoTensor"
    torch.testing.assert_close(layer(x).a, expected)
    layer.weight = torch.nn.Parameter(plain.to(torch.int8), requires_grad=False)
    assert layer.why_not(x) == "the weight is int8"


@pytest.mark.parametrize("base", ["Tensor", "Parameter"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_weight_with_a_product_of_its_own(torch, fnn, x, base, compiled):
    """A subclass may override F.linear; one that does not is an ordinary tensor."""

    class Silent({"Tensor": torch.Tensor, "Parameter": torch.nn.Parameter}[base]):
        pass

    class Tripled(Silent):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                result = function(*args, **(kwargs or {}))
            return 3 * result if function is torch.nn.functional.linear else result

    layer = fnn.Linear(8, 5, bias=False, activation="silu", device=x.device)
    plain = layer.weight.detach()
    del layer.weight
    for kind, reason in ((Silent, None), (Tripled, "the weight is a Tripled")):
        layer.weight = plain.as_subclass(kind)
        assert layer.why_not(x) == reason

        def of_torch(x):
            return ACTIVATIONS["silu"](torch.nn.functional.linear(x, layer.weight))

        if not compiled:
            expected = ACTIVATIONS["silu"]((3 if reason else 1) * (x @ plain.T))
        else:  # as torch's compiler interprets it: the one of 2.11 triples twice
            expected = torch.compile(of_torch, backend="eager")(x).as_subclass(torch.Tensor)
        got = torch.compile(layer, backend="eager")(x) if compiled else layer(x)
        torch.testing.assert_close(got.as_subclass(torch.Tensor), expected)


def test_a_loss_that_is_left_to_torch(torch, fnn, x):
    """A head with a hook, or labels that are probabilities: the results are those of logits."""
    target = torch.arange(24, device=x.device).reshape(4, 6) % 5
    weighted = {"weight": torch.arange(5.0, device=x.device) / 2, "z_loss": 0.1}
    for options in (
        *({}, {"softcap": 2.0}, {"reduction": "none", "label_smoothing": 0.1}, {"ignore_index": 3}),
        *(weighted, {**weighted, "ignore_index": 3, "reduction": "none"}, {**weighted, "label_smoothing": 0.1}),
    ):
        loss = fnn.LinearCrossEntropyLoss(8, 5, bias=True, device=x.device, **options)
        expected = loss(x, target)
        loss.linear.register_forward_hook(lambda *_: None)
        assert loss.why_not(x, target) == "linear has a hook or a forward of its own"
        torch.testing.assert_close(loss(x, target), expected)
    probabilities = torch.nn.functional.one_hot(target, 5).float()
    loss = fnn.LinearCrossEntropyLoss(8, 5, device=x.device)
    assert loss.why_not(x, probabilities) == "the target holds probabilities"
    torch.testing.assert_close(loss(x, probabilities), loss(x, target))


def test_a_loss_shares_its_weight(torch, fnn, x):
    """With an embedding, as in many language models. The state dict is that of torch's layer, if torch has it."""
    embedding = torch.nn.Embedding(5, 8, device=x.device)
    loss = fnn.LinearCrossEntropyLoss(8, 5, device=x.device)
    assert list(loss.state_dict()) == ["linear.weight"]
    loss.linear.weight = embedding.weight
    target = torch.zeros(4, 6, dtype=torch.int64, device=x.device)
    loss(embedding(target) + x, target).backward()
    assert embedding.weight.grad is not None
    if hasattr(torch.nn, "LinearCrossEntropyLoss"):
        own = torch.nn.LinearCrossEntropyLoss(8, 5, device=x.device)
        own.load_state_dict(loss.state_dict())
        torch.testing.assert_close(loss(x, target), own(x.flatten(0, 1), target.flatten()))
