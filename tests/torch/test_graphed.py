"""fusedops.torch.graphed: steps by CUDA graphs equal eager ones, and every other call runs the model as it is. On a CPU
a recorder that runs the work again stands for CUDA graphs."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import warnings
import weakref

import pytest

from tests.helpers.converting import converted
from tests.helpers.hugging_face import FAMILIES

torch = pytest.importorskip("torch")
nn = torch.nn


class Rerun:
    """Replays by running the work again, with the parameters that the modules had when it was captured."""

    def __init__(self, device):
        self.device, self.last = device, lambda: None

    def warm_up(self, work):
        for _ in range(3):
            work()

    def capture(self, work):
        modules = work.__self__.own.args[0].modules()
        captured = [(module, dict(module._parameters)) for module in modules]

        def replay():
            present = [(module, dict(module._parameters), dict(vars(module))) for module, _ in captured]
            try:
                for module, parameters in captured:
                    module._parameters.update(parameters)
                with torch.enable_grad():
                    work()
            finally:
                for module, parameters, attributes in present:
                    vars(module).update(attributes)
                    module._parameters.update(parameters)

        work()
        return replay


@pytest.fixture
def place(torch_backend, monkeypatch):
    from fusedops.torch.capturing import graph

    if torch_backend.device == "cpu":
        monkeypatch.setattr(graph, "DEVICE", "cpu")
        monkeypatch.setattr(graph, "Recorder", Rerun)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # fails without CUDA
    torch.manual_seed(0)
    return torch_backend.device


class Net(nn.Module):
    """Nested arguments, and a result with a constant and a number that needs no gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x, more=None, scale=1.0):
        y = self.last(self.norm(self.first(x + more["bias"][0]).relu())) * scale
        return {"loss": y.square().mean(), "y": y, "largest": y.detach().max(), "name": "net"}


def tensors_of_net(place, rows):
    return {"x": torch.randn(rows, 8, device=place), "more": {"bias": [torch.randn(8, device=place)]}}


def graphs(model):
    """The number of captured graphs, if none was refused."""
    from fusedops.torch.capturing import graph

    assert not model.forward.warned
    assert all(isinstance(each, graph.Graph) for each in model.forward.graphs.values())
    return len(model.forward.graphs)


def assert_near(got, expected):
    """Within 1e-5 of their size: the order of sums may differ, and errors add up over the steps."""
    for x, y in zip(got, expected, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            assert (x - y).norm() <= 1e-5 * y.norm(), (x, y)


def check_steps(model, calls, kind=torch.optim.SGD):
    """Steps of the graphed model and of a copy that is not."""
    import fusedops.torch as fo

    plain = copy.deepcopy(model)
    assert fo.graphed(model) is model
    found = []
    for each in (plain, model):
        optimizer, losses = kind(each.parameters(), 1e-2), []
        for arguments in calls:
            loss = each(**arguments)["loss"]  # the loss before it is alive
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        found.append([*losses, *(x.grad for x in each.parameters()), *each.parameters()])
    assert_near(*found[::-1])


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_steps_of_two_shapes(place, fo, kind):
    model = Net().to(place)
    pair = [tensors_of_net(place, rows) for rows in (3, 5)]
    check_steps(model, [*pair, *pair, pair[0]], getattr(fo.optim, kind))
    assert graphs(model) == 2 and model.unused.grad is None


def test_steps_of_a_converted_llama(place, fo, transformers):
    model = converted(fo, FAMILIES["llama"].build(device=place, use_cache=False)).train()
    calls = []
    for seed in range(5):
        torch.manual_seed(seed)
        ids = torch.randint(96, (2, 12), device=place)
        calls.append({"input_ids": ids, "labels": ids})
    check_steps(model, calls)
    assert graphs(model) == 1


def test_results_of_a_replay_stay(place, fo):
    """Results, gradients and their sums are not memory of the graph."""
    model = Net().to(place)
    plain, fo_model = copy.deepcopy(model), fo.graphed(model)
    kept = []
    for _ in range(3):
        arguments = tensors_of_net(place, 4)
        arguments["x"].requires_grad_()
        for each in (plain, fo_model):
            result = each(**arguments)
            assert result["name"] == "net" and not result["largest"].requires_grad
            (gradient,) = torch.autograd.grad(result["y"].sum(), arguments["x"], retain_graph=each is plain)
            kept.append((result["y"], gradient))
            if each is plain:
                result["loss"].backward()
            else:
                each(**arguments)["loss"].backward()
    assert_near([x for pair in kept[1::2] for x in pair], [x for pair in kept[::2] for x in pair])
    assert_near([x.grad for x in model.parameters()], [x.grad for x in plain.parameters()])
    assert graphs(model) == 1


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_evaluation(place, fo, mode):
    model = fo.graphed(Net().to(place).eval())
    kept = []
    for _ in range(3):
        arguments = tensors_of_net(place, 4)
        with getattr(torch, mode)():
            kept.append((model(**arguments)["y"], type(model).forward(model, **arguments)["y"]))
    assert not kept[0][0].requires_grad and graphs(model) == 1
    assert_near(*zip(*kept, strict=True))


def test_modes_and_parameters_have_graphs_of_their_own(place, fo):
    model, arguments = fo.graphed(Net().to(place), max_graphs=8), tensors_of_net(place, 4)
    changes = (
        lambda: None,
        model.norm.eval,
        lambda: model.first.weight.requires_grad_(False),
        lambda: setattr(model.last.bias, "data", torch.ones(8, device=place)),
        lambda: fo.convert(model, verbose=False),
    )
    for count, change in enumerate(changes, 1):
        change()
        for _ in range(2):
            model.zero_grad()
            model(**arguments)["loss"].backward()
        assert graphs(model) == count
        got = [x.grad for x in model.parameters()]
        model.zero_grad()
        type(model).forward(model, **arguments)["loss"].backward()
        assert_near(got, [x.grad for x in model.parameters()])
    with torch.autocast(place, torch.bfloat16):
        model(**arguments)["loss"].backward()
        assert graphs(model) == len(changes) + 1
    with torch.no_grad():
        for count, scale in enumerate((2.0, 3.0), len(changes) + 2):
            assert_near([model(**arguments, scale=scale)["y"]], [Net.forward(model, **arguments, scale=scale)["y"]])
            assert graphs(model) == count


def test_weights_change_within_autocast(place, fo):
    """A graph casts weights at each replay."""
    model, x = fo.graphed(nn.Linear(64, 64).to(place)), torch.ones(4, 64, device=place)
    with torch.autocast(place, torch.bfloat16), torch.no_grad():
        first = model(x)
        model.weight.zero_()
        model.bias.zero_()
        assert first.dtype is torch.bfloat16 and first.any() and not model(x).any()


def test_statistics_of_a_batch_norm(place, fo):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).to(place)
    plain, x = copy.deepcopy(model), torch.randn(16, 8, device=place)
    fo.graphed(model)
    for _ in range(3):
        for each in (plain, model):
            each(x).sum().backward()
    assert_near(*([x.float() for x in each[1].buffers()] for each in (model, plain)))
    assert graphs(model) == 1


class Caches(nn.Linear):
    def forward(self, x):
        if not hasattr(self, "table"):
            self.table = torch.arange(8.0, device=x.device)
        return super().forward(x) * self.table


def test_tensors_that_the_first_call_makes(place, fo):
    """They are not left in the model, since its state stays as it was, but the graph reads them."""
    model, x = Caches(8, 8).to(place), torch.ones(2, 8, device=place)
    plain = copy.deepcopy(model)
    fo.graphed(model)
    with torch.no_grad():
        for _ in range(3):
            assert_near([model(x)], [plain(x)])
            others = [torch.full((8,), torch.nan, device=place) for _ in range(100)]
    assert graphs(model) == 1 and len(others) == 100


def test_dropout_draws_anew(torch_gpu, fo):
    """As eager code does with the same seed, by torch's kernel, by a seed of ours and within attention."""

    class Drops(nn.Module):
        def forward(self, x):
            q = x.view(2, 16, 4, 32)
            ours = fo.attention(q, q, q, dropout=0.5)
            return torch.stack([nn.functional.dropout(x, 0.5), fo.dropout(x, 0.5), ours.view_as(x)])

    model, x = fo.graphed(Drops()), torch.ones(4096, device="cuda")
    torch.manual_seed(3)
    first, second = model(x), model(x)
    assert all((a != b).any() for a, b in zip(first, second, strict=True))
    torch.manual_seed(3)
    assert torch.equal(model(x), first)  # the first call was a replay as well
    assert graphs(model) == 1


def test_a_model_that_waits_for_the_gpu(torch_gpu, fo):
    class Waits(nn.Linear):
        def forward(self, x):
            return super().forward(x) * x.sum().item()

    model, x = fo.graphed(Waits(8, 8).cuda()), torch.ones(2, 8, device="cuda")
    with pytest.warns(UserWarning, match="runs without a graph: the forward or the backward cannot be captured"):
        y = model(x)
    assert_near([y], [type(model).forward(model, x)])
    y.sum().backward()
    assert torch.cuda.get_sync_debug_mode() == 0 and not torch.cuda.is_current_stream_capturing()
    other = fo.graphed(nn.Linear(8, 8).cuda())
    assert_near([other(x)], [type(other).forward(other, x)])
    assert graphs(other) == 1


@pytest.mark.parametrize("preserves", [False, True])
def test_activation_checkpoints(torch_gpu, fo, preserves):
    def checkpointed(layer, x):
        return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False, preserve_rng_state=preserves)

    model, x = Body(checkpointed).cuda(), torch.ones(2, 8, device="cuda")
    plain = copy.deepcopy(model)
    fo.graphed(model)
    if preserves:
        refused(model, "the forward or the backward cannot be captured: it reads the GPU's random state", x)
    for each in (plain, model):
        each(x).square().sum().backward()
    assert_near([x.grad for x in model.parameters()], [x.grad for x in plain.parameters()])
    assert preserves or graphs(model) == 1


def refused(model, message, *args, **kwargs):
    """A call that runs without a graph, with a warning the first time only."""
    with pytest.warns(UserWarning, match=f"^fusedops.torch.graphed: a call runs without a graph: {message}") as seen:
        result = model(*args, **kwargs)
    (ours,) = [each for each in seen if str(each.message).startswith("fusedops")]
    assert ours.filename == __file__ or model._forward_hooks
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "fusedops")
        model(*args, **kwargs)
    return result


def test_a_bounded_number_of_graphs(place, fo):
    model = fo.graphed(Net().to(place), max_graphs=2)
    for rows in (3, 4, 3):
        model(**tensors_of_net(place, rows))["loss"].backward()
    assert graphs(model) == 2
    refused(model, "it differs from the 2 before in shapes, .* pad to fewer shapes", **tensors_of_net(place, 5))
    model(**tensors_of_net(place, 3))["loss"].backward()
    assert len(model.forward.graphs) == 2


@pytest.mark.parametrize("enabled", [True, False], ids=["collector on", "collector off"])
def test_garbage_is_collected_before_a_capture(place, fo, monkeypatch, enabled):
    """The graph of a model that is garbage may end a capture with an error if it is destroyed in it."""
    from fusedops.torch.capturing import graph

    gc.disable()
    try:
        model = fo.graphed(Net().to(place))
        model(**tensors_of_net(place, 3))["loss"].backward()
        cycle = [model]
        cycle.append(cycle)
        garbage, capture, states = weakref.ref(model), graph.Recorder.capture, []
        del model, cycle
        assert garbage() is not None

        def watched(recorder, work):
            states.append((garbage() is None, gc.isenabled()))
            return capture(recorder, work)

        monkeypatch.setattr(graph.Recorder, "capture", watched)
        if enabled:
            gc.enable()
        other = fo.graphed(Net().to(place))
        other(**tensors_of_net(place, 3))["loss"].backward()
        assert graphs(other) == 1 and states == [(True, False)] * 2
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_a_second_call_before_the_backward(place, fo):
    model = Net().to(place)
    plain, arguments = copy.deepcopy(model), [tensors_of_net(place, 3) for _ in range(2)]
    fo.graphed(model)
    first = model(**arguments[0])["loss"]
    second = refused(model, "an earlier result awaits its backward; use torch.no_grad", **arguments[1])["loss"]
    (first + second).backward()
    sum(plain(**each)["loss"] for each in arguments).backward()
    assert_near([x.grad for x in model.parameters()], [x.grad for x in plain.parameters()])


def test_a_second_backward(place, fo):
    model = fo.graphed(Net().to(place))
    loss = model(**tensors_of_net(place, 3))["loss"]
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="the backward of a result runs once, also with retain_graph"):
        loss.backward()
    with pytest.raises(RuntimeError, match="a graph has no second derivatives; got create_graph"):
        model(**tensors_of_net(place, 3))["loss"].backward(create_graph=True)
    model(**tensors_of_net(place, 3))["loss"].backward()


class Body(nn.Module):
    """Its forward is given."""

    def __init__(self, body):
        super().__init__()
        self.body, self.layer = body, nn.Linear(8, 8)

    def forward(self, *args):
        return self.body(self.layer, *args)


OTHER = nn.Linear(8, 8)

REFUSED = {
    "an argument": (lambda layer, x, cache: layer(x), [set()], "an argument is a set, neither"),
    "a result": (lambda layer, x: (layer(x), object()), [], "a result is a object, neither"),
    "an argument that changes": (lambda layer, x: layer(x.mul_(1.0)), [], "the forward mutates an argument"),
    "randomness": (
        lambda layer, x: layer(x) * torch.rand([]).item(),
        [],
        "the forward draws random numbers on the host, which a graph would repeat",
    ),
    "a parameter": (
        lambda layer, x: layer(x) @ OTHER.to(x.device).weight,
        [],
        "a gradient is wanted of a tensor that is neither an argument nor a module's parameter",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_calls_without_a_graph(place, fo, case):
    body, more, message = REFUSED[case]
    refused(fo.graphed(Body(body).to(place)), message, torch.ones(2, 8, device=place), *more)


def test_hooks(place, fo):
    """Hooks of the model and of parameters are called, and those of submodules, without a graph."""
    model, x, seen = Net().to(place), tensors_of_net(place, 3), []
    model.register_forward_hook(lambda *_: seen.append("model"))
    model.first.weight.register_hook(lambda gradient: gradient * 2)
    plain = copy.deepcopy(model)
    fo.graphed(model)
    for _ in range(3):
        model.zero_grad()
        model(**x)["loss"].backward()
    plain.first.weight.register_hook(lambda gradient: gradient * 2)  # a copy has no hooks of tensors
    plain(**x)["loss"].backward()
    assert_near([x.grad for x in model.parameters()], [x.grad for x in plain.parameters()])
    assert graphs(model) == 1 and len(seen) == 4
    model.norm.register_forward_hook(lambda *_: seen.append("norm"))
    refused(model, "a submodule has hooks", **x)
    assert seen.count("norm") == 2


def test_recurrent_layers(place, fo):
    """They hold their parameters twice, and cuDNN's move those that are not in one block of memory."""
    model, x = nn.LSTM(8, 8).to(place), torch.ones(3, 2, 8, device=place)
    plain, held = copy.deepcopy(model), list(model._flat_weights)
    fo.graphed(model)
    if place == "cuda":
        refused(model, "the forward moves its parameters", x)
    for each in (plain, model):
        each(x)[0].sum().backward()
    assert_near([x.grad for x in model.parameters()], [x.grad for x in plain.parameters()])
    assert [*map(id, model._flat_weights)] == [*map(id, held)]


def test_without_a_gpu(torch_cpu, fo):
    model = fo.graphed(Net())
    model(**tensors_of_net("cpu", 3))["loss"].backward()
    assert graphs(model) == 0 and model.last.weight.grad is not None


def test_the_model_stays_what_it_was(place, fo):
    model = Net().to(place)
    keys, parameters, signature = list(model.state_dict()), list(model.parameters()), inspect.signature(model.forward)
    fo.graphed(model)
    arguments = tensors_of_net(place, 3)
    model(**arguments)
    assert list(model.state_dict()) == keys and type(model) is Net
    assert all(x is y for x, y in zip(model.parameters(), parameters, strict=True))
    assert inspect.signature(model.forward) == signature
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied.forward.model is copied and graphs(copied) == 0
        with torch.no_grad():
            copied.last.weight.zero_()
            copied.last.bias.zero_()
            assert not copied(**arguments)["y"].any() and model(**arguments)["y"].any()
    del model.forward
    assert model.forward.__func__ is Net.forward
    fo.graphed(model)


def test_compiled(place, fo):
    """The compiler takes the model's own code."""
    model = fo.graphed(Net().to(place))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    compiled(**tensors_of_net(place, 3))["loss"].backward()
    assert graphs(model) == 0


def test_errors(torch_cpu, fo):
    model = fo.graphed(nn.Linear(2, 2))
    wrapped = type("DistributedDataParallel", (nn.Linear,), {})(2, 2)
    compiled = torch.compile(nn.Linear(2, 2))
    for given, options, message in (
        (nn.Linear(2, 2), {"max_graphs": 0}, "max_graphs must be at least 1; got 0"),
        (model, {}, "model must have the forward of its class; it is replaced already"),
        (nn.LazyLinear(2), {}, "model must not be lazy; call it once before"),
        (wrapped, {}, "model must not be distributed; pass its module"),
        (compiled, {}, "model must not be compiled"),
    ):
        with pytest.raises(ValueError, match=f"^fusedops.torch.graphed: {message}"):
            fo.graphed(given, **options)
    with pytest.raises(ValueError, match="the model is graphed, and a replay calls no modules"):
        fo.explain(nn.Sequential(model), torch.ones(2))
