"""`convert` for the experts of transformers' mixtures."""

from __future__ import annotations

import copy

import pytest

from tests.helpers.accuracy import assert_as_accurate
from tests.helpers.converting import converted
from tests.helpers.hugging_face import Family

transformers = pytest.importorskip("transformers")

FAMILIES = ("qwen3_moe", "gpt_oss")
SLOW = ("mixtral", "deepseek_v3", "deepseek_v4", "glm4_moe", "olmoe")
CONVERTED = ("mixtral", "deepseek_v3", "glm4_moe", "olmoe", "llama4_text")
STEPS = 5


def built(torch_backend, name):
    """A small model in float64, whose experts are transformers' loop: their other implementations have no float64."""
    model = Family(name).build("float64", torch_backend.device)
    model.set_experts_implementation("eager")
    return model.train()


def with_experts(model):
    """The model with our experts alone: transformers' norms round to float32, and ours do not."""
    from fusedops.torch.conversion import hf

    found = [module for module in model.modules() if type(module).__name__.endswith("Experts")]
    for module in found:
        module.__class__ = hf.counterpart(type(module))
    assert found and all(module.why_not() is None for module in found)
    return model


def of_model(model):
    return next(module for module in model.modules() if type(module).__name__.endswith("Experts"))


def arguments(torch, experts):
    options = {"dtype": torch.float64, "device": experts.gate_up_proj.device}
    columns = experts.down_proj.shape[2 if experts.is_transposed else 1]
    x, weight = torch.randn(6, columns, **options), torch.rand(6, 2, **options)
    index = torch.randint(experts.num_experts, (6, 2), device=x.device)
    return x.requires_grad_(), index, weight.requires_grad_()


def losses_and_gradients(torch, model, call=None):
    """Those of training steps."""
    tokens = torch.arange(22, device=model.device).reshape(2, 11) * 7 % 90 + 3
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (model if call is None else call)(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        yield [loss.detach(), *(x.grad.clone() for x in model.parameters() if x.grad is not None)]
        optimizer.step()


def assert_equal_steps(torch, found, expected):
    """Sums in another order differ by 1e-16 of their terms, which five steps of these small models do not amplify by
    more than 1e6."""
    for mine, theirs in zip(found, expected, strict=True):
        for got, right in zip(mine, theirs, strict=True):
            torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-10 * max(1.0, float(right.abs().max())))


@pytest.mark.parametrize("name", [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_training_steps(torch_backend, torch, name):
    model = built(torch_backend, name)
    expected = [*losses_and_gradients(torch, copy.deepcopy(model))]
    assert_equal_steps(torch, losses_and_gradients(torch, with_experts(model)), expected)


@pytest.mark.parametrize("name", [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in CONVERTED)])
def test_training_steps_of_a_converted_model(torch_backend, torch, fo, name):
    """All that `convert` replaces, against transformers' own code in float64."""
    model = Family(name).build("float32", torch_backend.device).train()
    exact = copy.deepcopy(model).double()
    exact.set_experts_implementation("eager")
    plain = copy.deepcopy(model)
    steps = [losses_and_gradients(torch, each) for each in (converted(fo, model), plain, exact)]
    for results in zip(*steps, strict=True):
        assert_as_accurate(*([x.cpu().numpy() for x in each] for each in results), "float32")


def test_checkpointed(torch_backend, torch):
    model = built(torch_backend, "qwen3_moe")
    expected = [*losses_and_gradients(torch, copy.deepcopy(model))]
    with_experts(model).gradient_checkpointing_enable()
    assert_equal_steps(torch, losses_and_gradients(torch, model), expected)


def test_compiled(torch_backend, torch):
    """One graph, with the operator's results and gradients."""
    experts = of_model(with_experts(built(torch_backend, "gpt_oss")))
    x, index, weight = arguments(torch, experts)
    compiled = torch.compile(experts, backend="aot_eager", fullgraph=True)

    def results(call):
        y = call(x, index, weight)
        return y, *torch.autograd.grad(y.square().sum(), [x, weight, *experts.parameters()])

    for found, expected in zip(results(compiled), results(experts), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_experts_of_every_token(torch_backend, torch, fo):
    """Llama 4's experts, of which we compute those with a score, in eager and compiled code. Those with hooks are
    called."""
    model = Family("llama4_text", options={"num_experts_per_tok": 2, "num_local_experts": 5}).build("float64")
    mixture = next(module for module in model.modules() if type(module).__name__ == "Llama4TextMoe")
    mixture = mixture.to(torch_backend.device)
    x = torch.randn(2, 7, mixture.hidden_dim, dtype=torch.float64, device=torch_backend.device, requires_grad=True)

    def results(call):
        y, logits = call(x)
        return y, logits, *torch.autograd.grad(y.square().sum() + logits.sum(), [x, *mixture.parameters()])

    expected = results(mixture)
    converted(fo, mixture, "Llama4TextMoe")
    compiled = torch.compile(mixture, backend="aot_eager", fullgraph=True)
    compiled(x)
    found, calls = [], []
    for call in (mixture, compiled):
        with torch.profiler.profile() as profile:
            found.append(results(call))
        assert "fusedops::experts_backward" in {event.key for event in profile.key_averages()}
    mixture.experts.register_forward_hook(lambda *_: calls.append(1))
    found.append(results(mixture))
    mixture.router.register_forward_hook(lambda *_: calls.append(2))
    found.append(results(mixture))
    assert sorted(calls) == [1, 1, 2]
    for each in found:
        for got, right in zip(each, expected, strict=True):
            torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-9 * right.abs().max().item())


@pytest.mark.slow
def test_compiled_model(torch_backend, torch):
    model = built(torch_backend, "qwen3_moe")
    expected = [*losses_and_gradients(torch, copy.deepcopy(model))]
    compiled = torch.compile(with_experts(model), backend="aot_eager", fullgraph=True)
    assert_equal_steps(torch, losses_and_gradients(torch, model, compiled), expected)


def test_report_and_revert(torch_backend, torch, fo):
    model = Family("mixtral").build(device=torch_backend.device)
    kinds = [type(module) for module in model.modules()]
    converted(fo, model, "MixtralExperts")
    fo.revert(model)
    assert [type(module) for module in model.modules()] == kinds


def test_a_chosen_implementation_stays(torch_cpu, fo, capsys):
    model = Family("mixtral").build()
    for module in model.modules():
        if type(module).__name__ == "MixtralExperts":
            module.config._experts_implementation_internal = "sonicmoe"
    fo.convert(model)
    assert "experts_implementation is 'sonicmoe', which was chosen by user code" in capsys.readouterr().out


def test_an_implementation_chosen_later_is_called(torch_cpu, torch, fo, monkeypatch):
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    called = []

    def own(experts, x, index, weight):
        called.append(experts)
        return torch.zeros_like(x)

    monkeypatch.setitem(ALL_EXPERTS_FUNCTIONS._local_mapping, "own", own)
    model = fo.convert(Family("mixtral").build(), verbose=False)
    model.set_experts_implementation("own")
    experts = of_model(model)
    assert not experts(*arguments(torch, experts)).any()
    assert called == [experts] and "'own', which was chosen by user code" in experts.why_not(*arguments(torch, experts))


def test_sentinels_of_expert_parallelism(torch_backend, torch):
    """Indexes that stand for experts of other processes contribute nothing."""
    model = built(torch_backend, "qwen3_moe")
    experts = of_model(model)
    x, index, weight = arguments(torch, experts)
    index[0, 0] = index[2, 1] = experts.num_experts
    expected = experts(x, index, weight)
    model.set_experts_implementation("fusedops")
    torch.testing.assert_close(experts(x, index, weight), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(of_model(with_experts(model))(x, index, weight), expected, rtol=1e-12, atol=1e-12)


def operators(torch, call):
    """The names of our operators that run in a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:  # no kernels
        call()
    return {event.key for event in profile.key_averages() if event.key.startswith("fusedops::")}


@pytest.mark.parametrize("name", [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_the_registered_implementation(torch_backend, torch, name):
    """Models whose config names ours, converted or not."""
    model = built(torch_backend, name)
    expected = [*losses_and_gradients(torch, copy.deepcopy(model))]
    model.set_experts_implementation("fusedops")
    for each in (copy.deepcopy(model), with_experts(model)):
        experts = of_model(each)
        given = arguments(torch, experts)
        ours = operators(torch, lambda experts=experts, given=given: experts(*given).sum().backward())
        assert ours == {"fusedops::experts", "fusedops::experts_backward"}
        assert_equal_steps(torch, losses_and_gradients(torch, each), expected)


@pytest.mark.parametrize("is_converted", [False, True])
def test_the_registered_implementation_compiled(torch_backend, torch, fo, is_converted):
    """One graph. Another class, which is looked up later, does not compile it again."""
    model = built(torch_backend, "gpt_oss")
    experts = of_model(model)
    given = arguments(torch, experts)
    expected = experts(*given)
    model.set_experts_implementation("fusedops")
    if is_converted:
        fo.convert(model, verbose=False)
    compiled = torch.compile(experts, backend="aot_eager", fullgraph=True)
    compiled(*given)
    other = built(torch_backend, "qwen3_moe")
    other.set_experts_implementation("fusedops")
    of_model(other)(*arguments(torch, of_model(other)))
    with torch.compiler.set_stance("fail_on_recompile"):
        assert operators(torch, lambda: compiled(*given)) == {"fusedops::experts"}
        torch.testing.assert_close(compiled(*given), expected, rtol=1e-9, atol=1e-12)


def test_the_registered_implementation_of_a_saved_model(torch_backend, torch, fo, tmp_path):
    """`from_pretrained` takes the name, which files do not have."""
    model = Family("mixtral").build(device=torch_backend.device, experts_implementation="fusedops").eval()
    fo.convert(model, verbose=False).save_pretrained(tmp_path)
    assert "fusedops" not in (tmp_path / "config.json").read_text()
    ids = torch.arange(3, 14, device=model.device)[None]
    results = []
    for name in (None, "fusedops"):
        loaded = type(fo.revert(model)).from_pretrained(tmp_path, experts_implementation=name).to(model.device).eval()
        found = operators(torch, lambda loaded=loaded: results.append(loaded(ids).logits))
        assert found == ({"fusedops::experts"} if name else set())
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_the_registered_implementation_of_other_code(torch_cpu, torch):
    """Experts whose code ours is not, a gate of user code and an activation with hooks run transformers' grouped_mm."""
    plain = of_model(Family("nemotron_h").build())
    gated = of_model(Family("qwen3_moe").build())
    hooked, own, derived = copy.deepcopy(gated), copy.deepcopy(gated), copy.deepcopy(gated)
    calls = []
    hooked.act_fn.register_forward_hook(lambda *_: calls.append(1))
    own._apply_gate = lambda x: x.chunk(2, -1)[0]
    derived.__class__ = type("Derived", (type(derived),), {"_apply_gate": lambda self, x: x.chunk(2, -1)[1]})
    for experts in (plain, hooked, own, derived):
        weights = experts.down_proj
        x, index = torch.randn(6, weights.shape[1]), torch.randint(experts.num_experts, (6, 2))
        given = (x, index, torch.rand(6, 2))
        expected = experts(*given)
        experts.config._experts_implementation_internal = "fusedops"
        results = []
        found = operators(torch, lambda e=experts, g=given, to=results: to.append(e(*g)))
        assert not found and torch.equal(results[0], expected)
    assert len(calls) == 2


def test_the_registered_implementation_of_subclasses(torch_cpu, torch):
    """Classes that torch makes at run time, such as those of parametrizations."""
    model = built(torch_cpu, "qwen3_moe")
    experts = of_model(model)
    torch.nn.utils.parametrize.register_parametrization(experts, "down_proj", torch.nn.Identity())
    given = arguments(torch, experts)
    expected = experts(*given)
    model.set_experts_implementation("fusedops")
    results = []
    assert operators(torch, lambda: results.append(experts(*given))) == {"fusedops::experts"}
    torch.testing.assert_close(results[0], expected, rtol=1e-12, atol=1e-12)


def test_the_registered_implementation_looks_a_class_up_once(torch_cpu, torch, monkeypatch):
    from fusedops.torch.conversion.hf import registered_experts

    experts, calls = of_model(Family("qwen3_moe").build()), []
    plain, find = type(experts), registered_experts.hf.counterpart
    own = type("Own", (plain,), {"forward": lambda self, *inputs: plain.forward(self, *inputs)})
    experts.__class__ = own
    monkeypatch.setattr(registered_experts.hf, "counterpart", lambda kind: [calls.append(kind), find(kind)][1])
    experts.config._experts_implementation_internal = "fusedops"
    given = arguments(torch, experts)
    assert torch.equal(experts(*given), experts(*given)) and calls == [own]
