"""The PyTorch layers as modules: state, construction, text, copies, moves, compilation."""

from __future__ import annotations

import copy
import inspect
import io
import pickle

import pytest

from tests.helpers.torch_layers import CASES, Case, ours, reference, set_random_parameters

ALL = pytest.mark.parametrize("case", CASES, ids=str)
# One case for each layer, with the most options: its forward reads all of them.
ONE_OF_EACH = pytest.mark.parametrize(
    "case", {case.layer: case for case in sorted(CASES, key=lambda case: len(case.options))}.values(), ids=str
)
PLACED = pytest.mark.parametrize("case", [case for case in CASES if case.has_device], ids=str)
OF_TORCH = pytest.mark.parametrize("case", [case for case in CASES if case.is_torch], ids=str)


def made(case, backend, random, dtype="float32"):
    """A layer with random parameters, and its inputs."""
    layer = ours(case).to(backend.device)
    set_random_parameters([layer], random)
    return layer, case.tensors(backend, dtype, random)


def assert_equal(torch, got, expected):
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def assert_same_state(torch, layer, other):
    """Parameters and buffers have the same names, dtypes and bits; all options are equal."""
    assert repr(layer) == repr(other)
    for of in ("named_parameters", "named_buffers"):
        mine, others = dict(getattr(layer, of)()), dict(getattr(other, of)())
        assert mine.keys() == others.keys()
        for name in mine:
            assert_equal(torch, mine[name], others[name])


def assert_same_layer(torch, layer, other, inputs):
    assert_same_state(torch, layer, other)
    assert_equal(torch, layer(*inputs), other(*inputs))


def torchs_own(case, backend, layer):
    """torch's layer with the state of the fusedops layer."""
    of_torch = reference(case).to(backend.device)
    of_torch.load_state_dict(layer.state_dict())
    return of_torch


@OF_TORCH
def test_a_state_dict_moves_both_ways(torch_backend, case, random):
    torch = torch_backend.torch
    layer, inputs = made(case, torch_backend, random)
    of_torch = torchs_own(case, torch_backend, layer)
    back = ours(case).to(torch_backend.device)
    back.load_state_dict(of_torch.state_dict())
    assert_same_layer(torch, back, layer, inputs)


@OF_TORCH
def test_the_class_is_all_that_differs(torch_backend, case, random):
    """A layer of torch's constructor works with the fusedops class, and the reverse."""
    torch = torch_backend.torch
    layer, inputs = made(case, torch_backend, random)
    of_torch = torchs_own(case, torch_backend, layer)
    expected, expected_of_torch = layer(*inputs), of_torch(*inputs)
    layer.__class__, of_torch.__class__ = type(of_torch), type(layer)
    assert_equal(torch, of_torch(*inputs), expected)
    assert_equal(torch, layer(*inputs), expected_of_torch)


@OF_TORCH
def test_the_constructor_is_torchs(torch_cpu, case):
    layer, of_torch = (inspect.signature(type(make(case))) for make in (ours, reference))
    mine = {name: parameter.default for name, parameter in layer.parameters.items()}
    assert list(mine)[: len(of_torch.parameters)] == list(of_torch.parameters)
    assert {name: parameter.default for name, parameter in of_torch.parameters.items()}.items() <= mine.items()
    added = list(layer.parameters.values())[len(of_torch.parameters) :]
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in added)


@OF_TORCH
def test_the_arguments_of_a_call_have_torchs_names(torch_cpu, case):
    mine, of_torch = (list(inspect.signature(make(case).forward).parameters) for make in (ours, reference))
    assert mine[: len(of_torch)] == of_torch


@PLACED
def test_reset_parameters(torch_backend, case, random):
    torch = torch_backend.torch
    layer, _ = made(case, torch_backend, random)
    for buffer in layer.buffers():
        buffer.zero_()
    torch.manual_seed(0)
    layer.reset_parameters()
    torch.manual_seed(0)
    assert_same_state(torch, layer, ours(case, device=torch_backend.device))
    if case.is_random:  # the same random numbers as torch's own
        return
    offset = case.options.get("weight_offset", 0.0)
    for name, parameter in layer.named_parameters():
        assert_equal(torch, parameter.data, torch.full_like(parameter, (1.0 - offset) if name == "weight" else 0.0))


@pytest.mark.parametrize("case", [case for case in CASES if not case.has_parts], ids=str)
def test_the_text_of_a_layer_makes_it_again(torch_cpu, case, random):
    fnn = torch_cpu.functions.nn
    layer = ours(case)
    again = eval(repr(layer), vars(fnn))
    assert type(again) is type(layer) and repr(again) == repr(layer)
    plain = {name: value for name, value in vars(layer).items() if not name.startswith("_")}
    assert {name: value for name, value in vars(again).items() if not name.startswith("_")} == plain
    set_random_parameters([layer, again], random)
    inputs = case.tensors(torch_cpu, "float32", random)
    assert_equal(torch_cpu.torch, again(*inputs), layer(*inputs))


@PLACED
def test_skip_init(torch_backend, case):
    torch = torch_backend.torch
    layer = torch.nn.utils.skip_init(
        type(ours(case)), *case.arguments, **case.options, device=torch_backend.device, dtype=torch.float64
    )
    torch.manual_seed(0)
    expected = ours(case, device=torch_backend.device, dtype=torch.float64)
    torch.manual_seed(0)
    layer.reset_parameters()
    assert_same_state(torch, layer, expected)


def test_skip_init_needs_no_reset_for_tables(torch_backend):
    torch, fnn = torch_backend.torch, torch_backend.functions.nn
    device = torch_backend.device
    layer = torch.nn.utils.skip_init(fnn.RotaryEmbedding, 8, 64, device=device)
    assert_same_state(torch, layer, fnn.RotaryEmbedding(8, 64, device=device))


@PLACED
def test_device_and_dtype(torch_backend, case, dtype):
    torch = torch_backend.torch
    wanted = getattr(torch, dtype)
    layer = ours(case, device=torch_backend.device, dtype=wanted)
    assert all(p.device.type == torch_backend.device and p.dtype == wanted for p in layer.parameters())
    of_tables = torch.float64 if dtype == "float64" else torch.float32
    assert all(b.device.type == torch_backend.device and b.dtype == of_tables for b in layer.buffers())


@ALL
def test_meta(torch_backend, case, random):
    torch = torch_backend.torch
    layer, inputs = made(case, torch_backend, random)
    expected = layer(*inputs)
    found = layer.to("meta")(*(x.to("meta") for x in inputs))
    for x, y in zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(expected), strict=True):
        assert (x.device.type, x.shape, x.dtype) == ("meta", y.shape, y.dtype)


@ALL
@pytest.mark.parametrize("how", ["deepcopy", "pickle", "save"])
def test_copies(torch_backend, case, how, random):
    torch = torch_backend.torch
    layer, inputs = made(case, torch_backend, random)
    if how == "save":
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
    else:
        again = copy.deepcopy(layer) if how == "deepcopy" else pickle.loads(pickle.dumps(layer))
    assert type(again) is type(layer)
    assert_same_layer(torch, again, layer, inputs)


@ONE_OF_EACH
def test_compiled(torch_backend, case, random):
    torch = torch_backend.torch
    layer, inputs = made(case, torch_backend, random)
    compiled = torch_backend.traced(layer)  # fullgraph
    assert_equal(torch, compiled(*inputs), layer(*inputs))
    sources = [x.requires_grad_() for x in inputs if x.is_floating_point()] + list(layer.parameters())

    def gradients(function):
        results = function(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        return torch.autograd.grad(sum(result.square().sum() for result in results), sources)

    assert_equal(torch, gradients(compiled), gradients(layer))


@ALL
def test_exported(torch_backend, case, random):
    torch = torch_backend.torch
    layer, inputs = made(case, torch_backend, random)
    exported = torch.export.export(layer, tuple(inputs)).module()
    assert_equal(torch, exported(*inputs), layer(*inputs))


def test_what_is_left_to_torch_compiles(torch_backend, random):
    torch, fnn = torch_backend.torch, torch_backend.functions.nn
    case = Case("Softmax", (1,), {"scale": 0.5, "causal": True})
    layer, inputs = made(case, torch_backend, random)
    torch.testing.assert_close(torch_backend.traced(layer)(*inputs), layer(*inputs))
    loss = fnn.CrossEntropyLoss(weight=torch.ones(8)).to(torch_backend.device)
    logits, labels = inputs[0].transpose(1, 2), torch.zeros(4, 6, dtype=torch.int64, device=torch_backend.device)
    torch.testing.assert_close(torch_backend.traced(loss)(logits, labels), loss(logits, labels))


@ALL
def test_functional_call_and_torch_func(torch_backend, case, random):
    torch = torch_backend.torch
    layer, inputs = made(case, torch_backend, random)
    other, _ = made(case, torch_backend, random)
    parameters = dict(layer.named_parameters())
    assert_equal(torch, torch.func.functional_call(other, parameters, tuple(inputs)), layer(*inputs))
    if not parameters:
        return

    def total(parameters, *inputs):
        results = torch.func.functional_call(layer, parameters, inputs)
        return sum(result.sum() for result in (results if isinstance(results, tuple) else (results,)))

    found = torch.func.grad(total)(parameters, *inputs)
    expected = torch.autograd.grad(total(parameters, *inputs), list(parameters.values()))
    assert_equal(torch, tuple(found.values()), expected)


@ALL
def test_hooks(torch_backend, case, random):
    """Hooks like those of DDP and FSDP: around the call, and on the gradients of parameters."""
    layer, inputs = made(case, torch_backend, random)
    seen = []
    layer.register_forward_pre_hook(lambda module, args: seen.append("before"))
    layer.register_forward_hook(lambda module, args, result: seen.append("after"))
    for parameter in layer.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append("gradient"))
    results = layer(*(x.requires_grad_() if x.is_floating_point() else x for x in inputs))
    sum(result.sum() for result in (results if isinstance(results, tuple) else (results,))).backward()
    assert seen == ["before", "after", *["gradient"] * len(list(layer.parameters()))]


@pytest.mark.parametrize("move", ["half", "bfloat16", "float", "double", "to_empty", "back"])
def test_tables_are_never_rounded(torch_backend, move):
    """Neither in a layer of a model, nor on the way through 16 bits."""
    torch, fnn = torch_backend.torch, torch_backend.functions.nn
    device = torch_backend.device
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), fnn.RotaryEmbedding(8, 64))
    if move == "to_empty":
        model = model.to("meta").to_empty(device=device)
    elif move == "back":
        model = model.to(device).half().double()
    else:
        model = getattr(model.to(device), move)()
    dtype = torch.float64 if move in ("double", "back") else torch.float32
    assert_same_state(torch, model[1], fnn.RotaryEmbedding(8, 64, device=device, dtype=dtype))
    assert model[1].cos.device.type == device
    assert list(model.state_dict()) == ["0.weight", "0.bias"]


def test_positions_are_those_of_the_tables(torch_backend):
    """A position's angle does not depend on the number of positions; one beyond the tables is an error."""
    torch, fnn = torch_backend.torch, torch_backend.functions.nn
    x = torch.randn(2, 5, 3, 8, device=torch_backend.device)
    layer = fnn.RotaryEmbedding(8, 64, device=torch_backend.device)
    positions = torch.arange(5, device=torch_backend.device)
    assert torch.equal(layer(x), layer(x, positions))
    assert torch.equal(layer(x), layer(x, positions.expand(2, 5).int()))
    assert torch.equal(layer(x)[:, 3:], layer(x[:, 3:], positions[3:]))
    if torch_backend.device == "cpu":  # a GPU aborts the process
        for beyond in (64, -1):
            with pytest.raises(IndexError):
                layer(x, torch.full((5,), beyond))


def test_the_package_has_the_layers(torch_cpu):
    import fusedops.torch as fo
    import fusedops.torch.nn as fnn

    assert fo.nn is fnn
    elsewhere = {"MultiheadAttention", "Dropout", "DropoutAdd"}  # test_nn_attention.py, test_nn_dropout.py
    assert {case.layer for case in CASES} | elsewhere == set(fnn.__all__)
    with pytest.raises(AttributeError, match=r"module 'fusedops.torch' has no attribute 'other'"):
        fo.other  # noqa: B018
