"""fusedops.torch.optim: torch's optimizers, with all parameters updated in one pass."""

from __future__ import annotations

import copy
import pickle

import pytest

from tests.helpers.optimizers import assert_as_good

SHAPES = ((33,), (), (0,), (5, 7), (2050,))
CASES = {
    "AdamW": [{}, {"maximize": True, "weight_decay": 0.1, "betas": (0.5, 0.9)}, {"amsgrad": True, "betas": (0.9, 0.5)}],
    "Adam": [{"weight_decay": 0.05, "eps": 1e-4}, {"decoupled_weight_decay": True}, {"amsgrad": True}],
    "SGD": [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {"momentum": 0.8, "dampening": 0.3}],
}
all_cases = pytest.mark.parametrize(
    ("kind", "options"), [(kind, options) for kind, some in CASES.items() for options in some], ids=str
)


@pytest.fixture
def optim(torch_backend):
    from fusedops.torch import optim

    return optim


def parameters(backend, dtype, seed=0):
    torch, generator = backend.torch, backend.torch.Generator().manual_seed(seed)
    made = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES)
    return [torch.nn.Parameter(x.to(dtype).to(backend.device)) for x in made]


def groups(params):
    """Two groups with different options; either contains tensors without elements and without gradients."""
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.02, "weight_decay": 0.0}]


def give_gradients(backend, params, step):
    """Random gradients, the same for parameters of any dtype; in every third step, one parameter has none."""
    torch, generator = backend.torch, backend.torch.Generator().manual_seed(step)
    for i, p in enumerate(params):
        grad = torch.randn(p.shape, generator=generator, dtype=torch.float64).bfloat16()
        p.grad = None if i == 3 and step % 3 else grad.to(p.dtype).to(p.device)


def train(backend, optimizer, params, steps):
    for step in steps:
        give_gradients(backend, params, step)
        optimizer.step()
    return [p.detach().double() for p in params]


def made(module, kind, params, options, **more):
    return getattr(module, kind)(groups(params), lr=0.05, **options, **more)


def compare(backend, optim, kind, options, dtype, steps):
    torch = backend.torch
    found = []
    for module, kept_in in ((optim, dtype), (torch.optim, dtype), (torch.optim, torch.float64)):
        params = parameters(backend, dtype)
        params = [torch.nn.Parameter(p.detach().to(kept_in)) for p in params]
        own = {"foreach": False} if module is torch.optim else {}
        found.append(train(backend, made(module, kind, params, options, **own), params, range(steps)))
    arrays = ([x.cpu().numpy() for x in some] for some in found)
    assert_as_good(*arrays, str(dtype).removeprefix("torch."), steps)


@all_cases
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_are_as_accurate_as_those_of_torch(torch_backend, optim, kind, options, dtype):
    compare(torch_backend, optim, kind, options, getattr(torch_backend.torch, dtype), 60)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_thousand_steps(torch_backend, optim, dtype):
    for kind in CASES:
        compare(torch_backend, optim, kind, {}, getattr(torch_backend.torch, dtype), 1000)


@all_cases
def test_state_dicts_are_exchanged(torch_backend, optim, kind, options):
    """Either class continues from the other's state, with torch's own state tensors."""
    torch = torch_backend.torch
    whole = parameters(torch_backend, torch.float32)
    expected = train(torch_backend, made(optim, kind, whole, options), whole, range(12))
    for first, second in ((optim, torch.optim), (torch.optim, optim)):
        params = parameters(torch_backend, torch.float32)
        before = made(first, kind, params, options)
        train(torch_backend, before, params, range(6))
        after = made(second, kind, params, options)
        after.load_state_dict(copy.deepcopy(before.state_dict()))
        found = train(torch_backend, after, params, range(6, 12))
        for x, y in zip(found, expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
        states = before.state_dict()["state"], after.state_dict()["state"]
        described = [
            {i: {k: (v.dtype, v.device) for k, v in s.items() if v is not None} for i, s in x.items()} for x in states
        ]
        assert described[0] == described[1]


def test_copies(torch_backend, optim):
    """Pickled and copied optimizers continue like the original; a torch optimizer may get fusedops's class."""
    torch = torch_backend.torch
    params = parameters(torch_backend, torch.float32)
    optimizer = made(optim, "AdamW", params, {}, max_grad_norm=1.5)
    train(torch_backend, optimizer, params, range(3))
    copies = [pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)]
    expected = train(torch_backend, optimizer, params, range(3, 6))
    for other in copies:
        theirs = [p for group in other.param_groups for p in group["params"]]
        for x, y in zip(train(torch_backend, other, theirs, range(3, 6)), expected, strict=True):
            assert torch.equal(x, y)
    plain = made(torch.optim, "AdamW", params, {})
    train(torch_backend, plain, params, range(1))
    plain.__class__ = optim.AdamW
    train(torch_backend, plain, params, range(2))


@pytest.mark.parametrize("kind", CASES)
def test_a_gradient_scaler(torch_backend, optim, kind):
    """The scaler leaves unscaling to the optimizer; a step with an infinite gradient changes nothing."""
    torch = torch_backend.torch
    params, plain = parameters(torch_backend, torch.float32), parameters(torch_backend, torch.float32)
    options = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer, other = made(optim, kind, params, options), made(optim, kind, plain, options)
    scaler = torch.amp.GradScaler(torch_backend.device, init_scale=1024.0, growth_interval=2)
    scaler.scale(torch.zeros((), device=torch_backend.device))  # creates its state
    for step in range(4):
        give_gradients(torch_backend, params, step)
        for p in params:
            if p.grad is not None:
                p.grad *= scaler.get_scale()
        if step == 2:
            params[0].grad[3] = float("inf")
            before = [p.detach().clone() for p in params], copy.deepcopy(optimizer.state_dict()["state"])
        scaler.step(optimizer)
        scaler.update()
        if step == 2:
            for p, x in zip(params, before[0], strict=True):
                assert torch.equal(p, x)
            torch.testing.assert_close(optimizer.state_dict()["state"], before[1], rtol=0, atol=0)
        else:
            train(torch_backend, other, plain, [step])
            for p, x in zip(params, plain, strict=True):
                assert torch.equal(p, x)


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("scaled", [False, True])
def test_clipping(torch_backend, optim, kind, scaled):
    torch = torch_backend.torch
    params, theirs = parameters(torch_backend, torch.float32), parameters(torch_backend, torch.float32)
    optimizer = made(optim, kind, params, {}, max_grad_norm=1.5)
    other = made(torch.optim, kind, theirs, {})
    for step in range(3):
        give_gradients(torch_backend, params, step)
        give_gradients(torch_backend, theirs, step)
        torch.nn.utils.clip_grad_norm_(theirs, 1.5)
        other.step()
        kept = [p.grad.clone() if p.grad is not None else None for p in params]
        if scaled:
            for p in params:
                p.grad = p.grad * 4 if p.grad is not None else None
            optimizer.grad_scale = torch.tensor(4.0, device=params[0].device)
        optimizer.step()
        assert scaled or all(g is None or torch.equal(g, p.grad) for g, p in zip(kept, params, strict=True))
    for x, y in zip(params, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"fusedops\.torch\.optim\.\w+: max_grad_norm must be above 0; got 0"):
        made(optim, kind, params, {}, max_grad_norm=0)


def test_memory_that_is_shared_until_it_is_written(torch_backend, optim):
    torch = torch_backend.torch
    source = torch.zeros(5, device=torch_backend.device)
    weight = torch.nn.Parameter(torch._lazy_clone(source))
    weight.grad = torch.ones_like(weight)
    optim.SGD([weight], lr=1.0).step()
    assert weight.tolist() == [-1.0] * 5 and source.tolist() == [0.0] * 5


def test_rates(torch_backend, optim):
    """Learning rates as tensors, and a scheduler's."""
    torch = torch_backend.torch
    found = []
    for rate in (0.05, torch.tensor(0.05), torch.tensor(0.05, dtype=torch.float64, device=torch_backend.device)):
        params = parameters(torch_backend, torch.float32)
        optimizer = optim.AdamW(params, lr=rate)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        train(torch_backend, optimizer, params, [0])
        schedule.step()
        found.append(train(torch_backend, optimizer, params, [1]))
    for other in found[1:]:
        for x, y in zip(found[0], other, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)


def test_hooks_and_closures(torch_backend, optim):
    """Called once per step, also if torch's own code updates a group."""
    torch = torch_backend.torch
    torch.optim.AdamW(parameters(torch_backend, torch.float32))  # torch now wraps its method
    params = parameters(torch_backend, torch.float32)
    optimizer = optim.AdamW([{"params": params[:2]}, {"params": params[2:], "differentiable": True}])
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))

    def closure():
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = sum((p**2).sum() for p in params)
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert optimizer.step(closure) < first
    assert seen == ["before", "after"] * 2
    assert len(optimizer.param_groups) == 2
    assert optimizer.state[params[3]]["step"] == 2


def test_amsgrad_of_states_without_it(torch_backend, optim):
    """The largest second moments start when a group gets the option, or at loading."""
    torch = torch_backend.torch
    params = parameters(torch_backend, torch.float32)
    optimizer = made(optim, "AdamW", params, {})
    train(torch_backend, optimizer, params, [0])
    for group in optimizer.param_groups:
        group["amsgrad"] = True
    train(torch_backend, optimizer, params, [3])
    for p in params:
        assert torch.equal(optimizer.state[p]["max_exp_avg_sq"], optimizer.state[p]["exp_avg_sq"])


def assert_leaves_all(optimizer, params, error, sentence, torch):
    """The step raises the error, and parameters and states are unchanged."""
    before = [p.detach().clone() for p in params]
    kept = {p: {**state} for p, state in optimizer.state.items()}
    states = copy.deepcopy(optimizer.state_dict()["state"])
    with pytest.raises(error, match=sentence):
        optimizer.step()
    for p, x in zip(params, before, strict=True):
        assert torch.equal(p, x)
    assert optimizer.state.keys() == kept.keys()
    for p, state in kept.items():
        assert optimizer.state[p].keys() == state.keys()
        assert all(optimizer.state[p][name] is x for name, x in state.items())
    torch.testing.assert_close(optimizer.state_dict()["state"], states, rtol=0, atol=0)


REFUSED = {
    "gradients must be dense; got sparse_coo for {}": lambda p: setattr(p, "grad", p.grad.to_sparse()),
    "a gradient must be like {}, .2050,., torch.float32 on": lambda p: setattr(p.grad, "data", p.grad[:3]),
}


@pytest.mark.parametrize("sentence", REFUSED)
@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("clipped", [False, True])
def test_refused_gradients(torch_backend, optim, kind, sentence, clipped):
    """Gradients of the last group are refused: the first group is not updated either, in no step. A single group raises
    the same message."""
    torch = torch_backend.torch
    params = parameters(torch_backend, torch.float32)
    options = {"momentum": 0.9} if kind == "SGD" else {}
    options |= {"max_grad_norm": 1.0} if clipped else {}
    for given, name in ((params, "parameter 4 of group 0"), (groups(params), "parameter 2 of group 1")):
        optimizer = getattr(optim, kind)(given, lr=0.05, **options)
        for step in (1, 2):
            give_gradients(torch_backend, params, step)  # one parameter may have none
            REFUSED[sentence](params[4])
            title = rf"fusedops\.torch\.optim\.{kind}: "
            assert_leaves_all(optimizer, params, RuntimeError, title + sentence.format(name), torch)
            assert step > 1 or not optimizer.state
            train(torch_backend, optimizer, params, [step])


STEPS_THAT_ALLOCATE = [
    ("AdamW", {}, {}),
    ("AdamW", {"amsgrad": True}, {}),
    ("AdamW", {}, {"amsgrad": True}),
    ("AdamW", {"master_weights": True}, {}),
    ("SGD", {"momentum": 0.9}, {}),
]


@pytest.mark.parametrize(("kind", "options", "later"), STEPS_THAT_ALLOCATE, ids=str)
@pytest.mark.parametrize("fault", ["memory", "launch"])
def test_failed_steps(torch_backend, optim, monkeypatch, kind, options, later, fault):
    """A step that fails at any point changes nothing, and the next one gives the result as if it had not run. `later`:
    options that a group gets after its first step."""
    torch = torch_backend.torch
    module, operator = ("sgd", "_sgd") if kind == "SGD" else ("adam", "_adamw")

    def prepared():
        params = parameters(torch_backend, torch.bfloat16)
        optimizer = getattr(optim, kind)(params, lr=0.05, **options)
        train(torch_backend, optimizer, params, [0] if later else [])
        optimizer.param_groups[0] |= later
        give_gradients(torch_backend, params, 3)
        return params, optimizer

    expected, other = prepared()
    other.step()
    last = range(2 * len(SHAPES) if kind == "AdamW" and not later else len(SHAPES))
    for when in last if fault == "memory" else [0]:
        params, optimizer = prepared()
        calls = iter(range(when + 1))
        with monkeypatch.context() as patch:

            def fail(*args, original=torch.zeros_like, calls=calls, when=when, **keywords):
                if next(calls) == when:
                    raise torch.OutOfMemoryError("no memory")
                return original(*args, **keywords)

            patch.setattr(*(torch, "zeros_like") if fault == "memory" else (getattr(optim, module), operator), fail)
            assert_leaves_all(optimizer, params, torch.OutOfMemoryError, "no memory", torch)
        optimizer.step()
        for p, x in zip(params, expected, strict=True):
            assert torch.equal(p, x)


def test_complex_parameters(torch_backend, optim):
    torch = torch_backend.torch
    p = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64, device=torch_backend.device))
    p.grad = p.detach().clone()
    with pytest.raises(
        RuntimeError, match=r"optim\.AdamW: parameters must be float64, .+; got complex64 for parameter 0 of group 0"
    ):
        optim.AdamW([p]).step()


def test_compiled(torch_backend, optim):
    """A compiled step continues from an eager one's state, with the same bits."""
    torch = torch_backend.torch
    found = []
    for compiled in (False, True):
        params = parameters(torch_backend, torch.float32)
        optimizer = made(optim, "AdamW", params, {})
        train(torch_backend, optimizer, params, [0])
        torch.compiler.reset()
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        give_gradients(torch_backend, params, 3)
        step()
        found.append([p.detach() for p in params])
    for x, y in zip(*found, strict=True):
        assert torch.equal(x, y)


def test_cuda_graphs(torch_gpu):
    """No step waits for the host, with or without `capturable`."""
    from fusedops.torch import optim

    torch, params = torch_gpu.torch, parameters(torch_gpu, torch_gpu.torch.float32)
    plain = parameters(torch_gpu, torch.float32)
    optimizer, other = (made(optim, "AdamW", x, {}, max_grad_norm=1.0) for x in (params, plain))
    train(torch_gpu, optimizer, params, [0])
    train(torch_gpu, other, plain, [0])
    give_gradients(torch_gpu, params, 3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for _ in range(3):
        graph.replay()
        train(torch_gpu, other, plain, [3])
    for x, y in zip(params, plain, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("kind", "options"), [("AdamW", {}), ("Adam", {"amsgrad": True, "betas": (0.9, 0.5)})])
def test_master_weights(torch_backend, optim, kind, options, dtype):
    """The copies equal, bit for bit, the parameters of training in float32 with the same gradients; parameters are
    their rounded values."""
    torch = torch_backend.torch
    dtype = getattr(torch, dtype)
    params = parameters(torch_backend, dtype)
    wide = [torch.nn.Parameter(p.detach().float()) for p in params]
    optimizer = made(optim, kind, params, options, master_weights=True)
    expected = train(torch_backend, made(optim, kind, wide, options), wide, range(30))
    found = train(torch_backend, optimizer, params, range(30))
    assert any(not torch.equal(x, y) for x, y in zip(found, expected, strict=True))  # the copies have more digits
    for p, x in zip(params, wide, strict=True):
        state = optimizer.state[p]
        assert {x.dtype for x in state.values()} == {torch.float32}
        assert torch.equal(state["master_param"], x)
        assert torch.equal(p, x.to(dtype))


@pytest.mark.parametrize("options", [{}, {"amsgrad": True, "betas": (0.9, 0.5)}])
def test_master_weights_in_state_dicts(torch_backend, optim, options):
    """They stay float32 in state dicts, torch's own class loads them, and states without them get them."""
    torch = torch_backend.torch
    dtype = torch.bfloat16
    whole = parameters(torch_backend, dtype)
    expected = train(torch_backend, made(optim, "AdamW", whole, options, master_weights=True), whole, range(8))
    params = parameters(torch_backend, dtype)
    before = made(optim, "AdamW", params, options, master_weights=True)
    train(torch_backend, before, params, range(4))
    resumed = made(optim, "AdamW", params, options, master_weights=True)
    resumed.load_state_dict(before.state_dict())
    for one in (pickle.loads(pickle.dumps(before)), resumed):
        theirs = [p for group in one.param_groups for p in group["params"]]
        for x, y in zip(train(torch_backend, one, theirs, range(4, 8)), expected, strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("way", ["torch", "ours", "dtype"])
def test_outdated_master_weights_are_recreated(torch_backend, optim, way):
    """Another optimizer, or a step in another dtype, has updated the parameters without them."""
    torch = torch_backend.torch
    params = parameters(torch_backend, torch.bfloat16)
    optimizer = made(optim, "AdamW", params, {}, master_weights=True)
    train(torch_backend, optimizer, params, range(3))
    if way == "dtype":
        for p in params:
            p.grad, p.data = None, p.data.float()
        train(torch_backend, optimizer, params, range(6))
        for p in params:
            p.grad, p.data = None, p.data.bfloat16()
    else:
        other = made(torch.optim if way == "torch" else optim, "AdamW", params, {})
        other.load_state_dict(optimizer.state_dict())
        train(torch_backend, other, params, range(6))
        optimizer = made(optim, "AdamW", params, {}, master_weights=True)
        optimizer.load_state_dict(other.state_dict())
    before = [p.detach().clone() for p in params]
    train(torch_backend, optimizer, params, range(6, 7))  # of all parameters
    for p, x in zip(params, before, strict=True):
        master = optimizer.state[p]["master_param"]
        assert master.dtype == torch.float32 and torch.equal(master.to(torch.bfloat16), p)
        assert bool(((p - x).abs() <= 0.15).all())  # three times the rate, and rounding


def test_hooks_of_loaded_master_weights(torch_backend, optim):
    """The state returned by pre-hooks is loaded; changes by post-hooks stay."""
    torch = torch_backend.torch
    params = parameters(torch_backend, torch.bfloat16)
    optimizer = made(optim, "AdamW", params, {}, master_weights=True)
    train(torch_backend, optimizer, params, range(1))
    saved = optimizer.state_dict()
    seen = []
    hook = optimizer.register_load_state_dict_post_hook(lambda x: seen.append(x.state[params[0]]["exp_avg"].dtype))
    optimizer.load_state_dict(saved)
    assert seen == [torch.float32]
    hook.remove()
    optimizer.register_load_state_dict_pre_hook(lambda _, given: {**given, "state": {}})
    optimizer.load_state_dict(saved)
    assert not optimizer.state
    train(torch_backend, optimizer, params, range(1))


def test_loaded_master_weights_that_are_gone(torch_backend, optim):
    """After the states are cleared, training starts from new ones."""
    torch = torch_backend.torch
    params = parameters(torch_backend, torch.bfloat16)
    optimizer = made(optim, "AdamW", params, {}, master_weights=True)
    train(torch_backend, optimizer, params, range(1))
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.state.clear()
    train(torch_backend, optimizer, params, range(1))
    assert optimizer.state[params[0]]["step"] == 1


def test_master_weights_are_refused(torch_backend, optim):
    """In configurations in which torch's own code would update the parameters without them."""
    torch = torch_backend.torch
    params = parameters(torch_backend, torch.bfloat16)
    with pytest.raises(ValueError, match="master_weights needs numbers as betas, no differentiable"):
        optim.AdamW(params, differentiable=True, master_weights=True)
    optimizer = optim.AdamW(params, master_weights=True)
    with pytest.raises(ValueError, match="master_weights needs"):
        optimizer.add_param_group({"params": parameters(torch_backend, torch.bfloat16), "differentiable": True})
    assert len(optimizer.param_groups) == 1
    give_gradients(torch_backend, params, 0)
    optimizer.param_groups[0]["differentiable"] = True
    before = [p.detach().clone() for p in params]
    with pytest.raises(RuntimeError, match="master_weights needs numbers as betas"):
        optimizer.step()
    assert all(torch.equal(p, x) for p, x in zip(params, before, strict=True))
    optimizer.param_groups[0]["differentiable"] = False
    optimizer.step()


def test_master_weights_with_a_scaler_and_a_norm(torch_backend, optim):
    """As in float32, with the same scaled gradients. PyTorch's scaler does not support bfloat16 on a GPU."""
    torch = torch_backend.torch
    params = parameters(torch_backend, torch.float16)
    wide = [torch.nn.Parameter(p.detach().float()) for p in params]
    found = []
    for some, options in ((params, {"master_weights": True}), (wide, {})):
        optimizer = made(optim, "AdamW", some, {}, max_grad_norm=0.5, **options)
        scaler = torch.amp.GradScaler(torch_backend.device, init_scale=4.0)
        scaler.scale(torch.zeros((), device=torch_backend.device))
        for step in range(4):
            give_gradients(torch_backend, params, step)
            for p, given in zip(some, params, strict=True):
                p.grad = None if given.grad is None else given.grad.to(p.dtype)
            if step == 2:
                some[0].grad[0] = float("inf")  # a skipped step
            scaler.step(optimizer)
            scaler.update(4.0)
        found.append([optimizer.state[p].get("master_param", p.detach()) for p in some])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
