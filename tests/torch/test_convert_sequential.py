"""fusedops.torch.convert of torch.nn.Sequential: a linear layer and the following activation are one operator."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict
from functools import partial

import pytest

from tests.helpers.accuracy import assert_as_accurate, assert_each_close
from tests.helpers.converting import converted
from tests.helpers.numerics import assert_same_bits

pytest.importorskip("fusedops.torch")

import torch
from torch import nn
from torch.nn.utils import prune

from tests.helpers.torch_training import losses_of_steps

MIXIN = "fusedops.torch.conversion.sequential.Sequential"
ACTIVATIONS = {
    "relu": nn.ReLU,
    "relu_inplace": lambda: nn.ReLU(inplace=True),
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}


OF_THE_RESULT = ("relu", "sigmoid", "tanh")  # torch computes their gradients from the result


class Chain(nn.Sequential):
    """A subclass that runs its modules like torch.nn's class."""


class Doubled(nn.Sequential):
    def forward(self, input):
        return 2 * super().forward(input)


@pytest.fixture(autouse=True)
def place(torch_backend):
    torch.manual_seed(0)
    with torch.device(torch_backend.device):
        yield


@pytest.fixture
def fused(monkeypatch):
    """The activations that the operator has computed, by name, and the calls of the bias kernel."""
    from fusedops.torch.conversion.hf import dense

    calls = []

    class Recorded:
        def __getattr__(self, name):
            original = getattr(original_fo, name)

            def call(*args, **kwargs):
                calls.append((name, args[3] if name == "linear" else args[2]))
                return original(*args, **kwargs)

            return call

    original_fo = dense.fo
    monkeypatch.setattr(dense, "fo", Recorded())
    return calls


def mlp(activation=nn.GELU, bias=True):
    return nn.Sequential(nn.Linear(12, 24, bias=bias), activation(), nn.Linear(24, 8), nn.SiLU(), nn.Linear(8, 5))


def results(model, x):
    """The output and the gradients of the input and of every parameter."""
    x = x.detach().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y))
    return [y.detach(), x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def arrays(backend, model, x):
    return [backend.to_numpy(y) for y in results(model, x)]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_results_are_as_accurate_and_revert_restores_the_bits(torch_backend, fo, fused, activation, bias, dtype):
    model = mlp(ACTIVATIONS[activation], bias).to(getattr(torch, dtype))
    x = torch.randn(4, 7, 12).to(getattr(torch, dtype))
    wide = copy.deepcopy(model).double()
    plain, exact = arrays(torch_backend, model, x), arrays(torch_backend, wide, x.double())
    converted(fo, model)
    got = arrays(torch_backend, model, x)
    if dtype == "float64":  # both sum up to 28 terms in each of seven products, in sequence
        assert_each_close(got, plain, rtol=0, terms=7 * 28)
    else:
        assert_as_accurate(got, plain, exact, dtype)
    name = activation.removesuffix("_inplace")
    first = name not in OF_THE_RESULT
    if torch_backend.device == "cuda" or dtype != "bfloat16":
        assert fused == [("linear", name)] * first + [("linear", "silu")]
    else:  # where torch's own product is faster
        assert fused == [("bias_act", name)] * (first and bias) + [("bias_act", "silu")]
    fo.revert(model)
    assert type(model) is nn.Sequential
    assert_same_bits(arrays(torch_backend, model, x)[0], plain[0])


@pytest.mark.parametrize("activation", OF_THE_RESULT)
def test_no_more_is_saved_for_the_backward(fo, fused, activation, capsys):
    """An activation whose gradient torch computes from the result is fused only without gradients."""
    model, x = nn.Sequential(nn.Linear(12, 24), ACTIVATIONS[activation]()), torch.randn(3, 12)
    plain = model(x)
    fo.convert(model)
    assert f"{MIXIN}, where no gradient is recorded" in capsys.readouterr().out
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda y: saved.append(y.shape) or y, lambda y: y):
        assert_same_bits(model(x).detach().cpu().numpy(), plain.detach().cpu().numpy())
    assert saved.count((3, 24)) == 1 and not fused
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain)
    model.requires_grad_(False)
    torch.testing.assert_close(model(x), plain)
    assert fused == [("linear", activation)] * 2


@pytest.mark.parametrize("learned", ["weight", "bias", "neither"])
def test_no_more_is_saved_with_frozen_parameters(fo, fused, learned, capsys):
    """Torch saves the input for the gradient of the weight alone."""
    model, x = nn.Sequential(nn.Linear(12, 24), nn.GELU()), torch.randn(3, 12, requires_grad=True)
    for name, parameter in model[0].named_parameters():
        parameter.requires_grad_(name == learned)
    sizes = []
    for convert in (False, True):
        if convert:
            fo.convert(model)
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda y, saved=saved: saved.append(y.shape) or y, lambda y: y):
            model(x)
        sizes.append(sum(shape.numel() for shape in saved if shape[0] == 3))
    assert sizes[1] == sizes[0]
    printed = capsys.readouterr().out
    assert ("where no gradient is recorded" in printed) == ("kept GELU" in printed) == (learned != "weight")
    assert fused == [("linear", "gelu")] * (learned == "weight")
    with torch.no_grad():
        model(x)
    assert fused[-1] == ("linear", "gelu")


def test_the_report_names_the_fused_activations(fo, capsys):
    """Those fused in every call: ReLU runs separately in training."""
    fo.convert(nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 8), nn.GELU()))
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == f"     1 Sequential -> {MIXIN}"
    assert [line for line in printed if "kept" in line] == ["  kept ReLU '1': torch's own kernel serves as well"]


@pytest.mark.parametrize("shape", [(12,), (1, 12), (0, 12), (2, 0, 12)], ids=str)
def test_few_rows_and_none(fo, fused, shape):
    model, x = mlp(), torch.randn(shape)
    plain = results(model, x)
    converted(fo, model)
    got = results(model, x)
    assert len(fused) == 2
    torch.testing.assert_close(got, plain)


def test_one_element(fo, fused):
    model, x = nn.Sequential(nn.Linear(1, 1), nn.SiLU()), torch.randn(1)
    plain = results(model, x)
    converted(fo, model)
    torch.testing.assert_close(results(model, x), plain)
    assert fused == [("linear", "silu")]


def test_dropout_after_the_activation(fo, fused):
    """Drawn as after separate modules, in training only."""
    model = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Dropout(0.5), nn.Linear(24, 8), nn.ReLU(), nn.Dropout(0.5))
    converted(fo, model)
    parts, x = [*model], torch.randn(6, 12)

    def one_by_one(x):
        for part in parts:
            x = part(x)
        return x

    for training in (True, False):
        model.train(training)
        found = []
        for run in (model, one_by_one):
            torch.manual_seed(1)
            with torch.no_grad():
                found.append(run(x))
        torch.testing.assert_close(*found)
        assert (found[0] == 0).float().mean() > 0.5 if training else True
    assert fused == [("linear", "gelu"), ("linear", "relu")] * 2


@pytest.mark.parametrize("kind", [nn.Sequential, Chain])
def test_training_continues_after_the_conversion(fo, kind):
    """Converted after a few steps, with the same optimizer."""

    def losses(convert):
        torch.manual_seed(0)
        model = kind(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 1)).double()
        x = torch.randn(32, 12, dtype=torch.float64)
        return losses_of_steps(model, lambda _: (model(x)[:, 0] - x.sum(-1)).square().mean(), 30, 1e-2, convert)

    plain = losses(convert=None)
    torch.testing.assert_close(losses(partial(converted, fo)), plain, rtol=30 * 2**-40, atol=0)
    assert plain[-1] < plain[0] / 2


def test_nested_and_shared(fo, fused):
    """An activation at the end of one Sequential does not follow a linear layer at the end of another."""
    act = nn.SiLU()
    inner = nn.Sequential(nn.Linear(12, 12), act)
    model = nn.Sequential(inner, nn.Sequential(nn.Linear(12, 12)), act, inner, nn.Linear(12, 3), nn.SiLU())
    x = torch.randn(5, 12)
    plain = results(model, x)
    converted(fo, model)
    assert type(model[1]) is nn.Sequential
    torch.testing.assert_close(results(model, x), plain)
    assert fused == [("linear", "silu")] * 2 + [("linear", "silu")]


class Adapter(nn.Module):
    """Like a library's adapter that replaces a linear layer."""

    def __init__(self, base):
        super().__init__()
        self.base, self.in_features, self.out_features = base, base.in_features, base.out_features

    def forward(self, x):
        return self.base(x) + 1


class MyLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


class MyAct(nn.GELU):
    def forward(self, x):
        return 2 * super().forward(x)


def with_adapter(model):
    model[0] = Adapter(model[0])


def with_a_class_of_one_s_own(model):
    model[0] = MyLinear(12, 24)


def with_another_activation(model):
    model[1] = nn.ELU()


def with_an_activation_of_one_s_own(model):
    model[1] = MyAct()


def with_another_formula(model):
    model[1].approximate = "tanh"


def with_a_module_between(model):
    model.insert(1, nn.LayerNorm(24))


def without_the_activation(model):
    del model[1]


def with_a_parametrization(model):
    nn.utils.parametrizations.weight_norm(model[0])


def with_a_hook_on_the_layer(model):
    model[0].register_forward_hook(lambda module, args, y: 3 * y)


def with_a_hook_on_the_activation(model):
    model[1].register_forward_pre_hook(lambda module, args: (3 * args[0],))


def with_a_forward_of_its_own(model):
    model[0].forward = lambda x: x @ model[0].weight.T * 2


def with_pruned_weights(model):
    prune.l1_unstructured(model[0], "weight", 0.5)


CHANGES = {
    function.__name__: function
    for function in (
        with_adapter,
        with_a_class_of_one_s_own,
        with_another_activation,
        with_an_activation_of_one_s_own,
        with_another_formula,
        with_a_module_between,
        without_the_activation,
        with_a_parametrization,
        with_a_hook_on_the_layer,
        with_a_hook_on_the_activation,
        with_a_forward_of_its_own,
        with_pruned_weights,
    )
}


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_modules_are_respected(fo, fused, change, order):
    """Changes before and after the conversion."""
    x, found = torch.randn(5, 12), []
    for convert in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 8), nn.SiLU())
        if convert and order == "after":
            converted(fo, model)
            model(x)
            fused.clear()
        CHANGES[change](model)
        if convert and order == "before":
            converted(fo, model)
        found.append(results(model, x))
    torch.testing.assert_close(*found)
    first = [("linear", "gelu_tanh")] if change == "with_another_formula" else []
    assert fused == [*first, ("linear", "silu")]


def test_a_lazy_layer_is_fused_once_it_has_its_weight(fo, fused):
    model = nn.Sequential(nn.LazyLinear(24), nn.GELU(), nn.Linear(24, 8), nn.SiLU())
    converted(fo, model)
    x = torch.randn(5, 12)
    first = model(x)
    assert fused == [("linear", "silu")]
    torch.testing.assert_close(model(x), first)
    assert fused[1:] == [("linear", "gelu"), ("linear", "silu")]


def test_inputs_that_the_operator_refuses(fo):
    model = nn.Sequential(nn.Identity(), nn.Linear(12, 24), nn.GELU())
    converted(fo, model)
    with pytest.raises(TypeError, match="linear"):
        model([1, 2])
    with pytest.raises(RuntimeError, match="weight must have 11 columns"):
        model(torch.randn(3, 11))
    with pytest.raises(RuntimeError, match="dtype"):
        model(torch.ones(3, 12, dtype=torch.int64))
    assert model.to("meta")(torch.ones(3, 12, device="meta")).shape == (3, 24)


def test_report(fo, capsys):
    model = nn.ModuleDict(
        {
            "converted": nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)),
            "subclass": Chain(nn.Linear(4, 4), nn.SiLU()),
            "watched": nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()),
            "adapted": nn.Sequential(Adapter(nn.Linear(4, 4)), nn.ReLU()),
            "elu": nn.Sequential(nn.Linear(4, 4), nn.ELU()),
            "own": Doubled(nn.Linear(4, 4), nn.ReLU()),
            "convolution": nn.Sequential(nn.Conv1d(4, 4, 1), nn.ReLU()),
            "nothing": nn.Sequential(nn.Linear(4, 4), nn.Identity()),
            "set": nn.Sequential(nn.Linear(4, 4), nn.SiLU()),
        }
    )
    model["watched"][0].register_forward_hook(lambda *_: None)
    model["set"].forward = lambda x: x
    fo.convert(model)
    printed = capsys.readouterr().out.splitlines()
    assert printed[:4] == [
        "fusedops: 2 of 23 modules of 'ModuleDict' replaced, 1 more on a condition",
        f"     1 Chain      -> {MIXIN}",
        f"     1 Sequential -> {MIXIN}",
        f"     1 Sequential -> {MIXIN}, where its linear layers and activations have no hook, and no weight "
        "has a main_grad",
    ]
    skipped = [line.partition(", ")[0] for line in printed if "kept" in line]
    assert skipped == [
        "  kept ReLU (3): torch's own kernel serves as well",
        "  kept Sequential 'elu': activation ELU is not among those of the kernel",
        "  kept Sequential 'set': its forward is an attribute of its own",
        f"  kept Sequential 'adapted': its product is a {__name__}.Adapter",
        "  kept SiLU 'set.1': torch's own kernel serves as well",
        "  kept Sigmoid 'watched.1': torch's own kernel serves as well",
    ]
    kinds = {name: type(module) for name, module in model.items()}
    assert [name for name, kind in kinds.items() if "original" in vars(kind)] == ["converted", "subclass", "watched"]
    fo.convert(model)
    assert "0 of 23 modules of 'ModuleDict' replaced, 2 are fusedops's already" in capsys.readouterr().out
    fo.revert(model)
    assert {type(module) for module in model.values()} == {nn.Sequential, Chain, Doubled}


def test_modules_that_resemble_no_linear_layer(fo, capsys):
    class Unsized(nn.Module):
        @property
        def out_features(self):
            raise RuntimeError("not yet")

    with pytest.warns(UserWarning, match="nothing was converted"):
        fo.convert(nn.ModuleList([nn.Sequential(each, nn.ReLU()) for each in (Unsized(), nn.Bilinear(3, 3, 3))]))
    assert "kept Sequential" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", [nn.Sequential, Chain])
def test_the_container_behaves_as_before(fo, kind):
    named = OrderedDict(first=nn.Linear(12, 24), act=nn.GELU(), second=nn.Linear(24, 8), last=nn.SiLU())
    model, x = kind(named), torch.randn(5, 12)
    plain, text, state = model(x), str(model), copy.deepcopy(model.state_dict())
    converted(fo, model)
    assert isinstance(model, kind) and str(model) == text and len(model) == 4
    assert list(model.state_dict()) == list(state)
    assert model.load_state_dict(state) and kind(named).load_state_dict(model.state_dict())
    assert model.act is model[1] and [*model.named_children()] == [*named.items()]
    torch.testing.assert_close(model[2:](model[:2](x)), plain)
    torch.testing.assert_close((model + model[:0])(x), plain)
    model.append(nn.Identity())
    torch.testing.assert_close(model(x), plain)
    popped = model.pop(3)
    torch.testing.assert_close(popped(model(x)), plain)


@pytest.mark.parametrize("kind", [nn.Sequential, Chain])
def test_copies(fo, kind):
    model, x = converted(fo, kind(nn.Linear(12, 24), nn.GELU())), torch.randn(5, 12)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
    for each in copies:
        assert type(each) is type(model) is not kind
        assert torch.equal(each(x), model(x))
        assert type(fo.revert(each)) is kind


class Counted(nn.Sequential):
    """Defines its own copying."""

    def __init__(self, n):
        super().__init__(nn.Linear(n, n), nn.GELU())
        self.n = n

    def __reduce__(self):
        return (Counted, (self.n,))


def test_a_custom_reduce(fo, capsys):
    model = fo.convert(nn.ModuleList([Counted(3), nn.LayerNorm(3)]))
    assert "kept Counted '0': its class has a __reduce__ of its own" in capsys.readouterr().out
    for each in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(each[0]) is Counted and each[0].n == 3


def test_hooks_of_the_container(fo):
    model, calls = mlp(), []
    model.register_forward_hook(lambda *_: calls.append("after"))
    model.register_forward_pre_hook(lambda *_: calls.append("before"))
    converted(fo, model)(torch.randn(5, 12))
    assert calls == ["before", "after"]


def test_compiled(torch_backend, fo):
    model, x = converted(fo, nn.Sequential(mlp(), nn.Linear(5, 4), nn.SiLU())), torch.randn(6, 12)
    expected = results(model, x)
    graphs = []

    def backend(graph, inputs):
        graphs.append(str(graph.graph))
        return graph

    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(results(compiled, x), expected)
    if torch_backend.device == "cpu":  # on a GPU, so small a product is left to the compiler
        assert graphs[0].count("fusedops.linear") == 3
    model[2] = nn.ReLU()  # recompiled
    torch.testing.assert_close(compiled(x), model(x))
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


def test_autocast(torch_backend, fo, fused):
    model, x = mlp(), torch.randn(6, 12)
    exact = arrays(torch_backend, copy.deepcopy(model).double(), x.double())
    with torch.autocast(torch_backend.device, torch.bfloat16):
        plain = arrays(torch_backend, model, x)
        got = arrays(torch_backend, converted(fo, model), x)
    assert_as_accurate(got, plain, exact, "bfloat16")
    assert len(fused) == 2


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("activation", ["gelu", *OF_THE_RESULT])
def test_recorded(fo, activation):
    """torch.fx traces through it, as through torch's own; traced TorchScript has gradients, too.

    The tracer checks its graph against another trace, made without gradients.
    """
    model, x = converted(fo, mlp(ACTIVATIONS[activation])), torch.randn(6, 12)
    expected = results(model, x)
    symbolic = torch.fx.symbolic_trace(model)
    assert [node.target for node in symbolic.graph.nodes if node.op == "call_module"] == [*"01234"]
    traced = torch.jit.trace(model, x)
    assert str(traced.inlined_graph).count("fusedops::linear") == 1 + (activation not in OF_THE_RESULT)
    for recorded in (symbolic, traced):
        torch.testing.assert_close(results(recorded, x), expected)


def test_onnx_gets_operators_of_torch(fo, monkeypatch):
    import torch.onnx

    model, x = converted(fo, mlp()), torch.randn(6, 12)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    assert "fusedops" not in torch.export.export(model, (x,)).graph_module.code


def test_transforms(fo):
    """torch.func's transforms; vmap loops over rows or folds them."""
    model, x = converted(fo, mlp()), torch.randn(6, 12)
    plain = fo.revert(copy.deepcopy(model))
    for run in (torch.vmap, lambda model: torch.vmap(torch.func.jacrev(model))):
        torch.testing.assert_close(run(model)(x), run(plain)(x))
    torch.testing.assert_close(torch.func.functional_call(model, dict(model.named_parameters()), x), plain(x))
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain(x))


def test_sequential_subclasses_of_torch_are_skipped(fo):
    """torch.ao looks them up by class."""
    pair = torch.ao.nn.intrinsic.LinearReLU(nn.Linear(4, 4), nn.ReLU())
    converted(fo, nn.Sequential(nn.LayerNorm(4), pair))
    assert type(pair) is torch.ao.nn.intrinsic.LinearReLU
