"""fusedops.torch.convert and revert of torch.nn's modules: replaced and skipped modules, and the report."""

from __future__ import annotations

import copy
import io
import types

import numpy as np
import pytest

from tests.helpers.accuracy import assert_as_accurate
from tests.helpers.converting import converted
from tests.helpers.hugging_face import Family
from tests.helpers.numerics import assert_same_bits


@pytest.fixture
def torch(torch_backend):
    torch_backend.torch.manual_seed(0)
    with torch_backend.torch.device(torch_backend.device):
        yield torch_backend.torch


def sequential(torch):
    nn = torch.nn
    return nn.Sequential(
        nn.Linear(12, 16),
        nn.LayerNorm(16),
        nn.GELU(),
        nn.Linear(16, 16),
        nn.RMSNorm(16),
        nn.Linear(16, 5),
        nn.Softmax(-1),
    )


def encoder(torch):
    layer = torch.nn.TransformerEncoderLayer(12, 2, 24, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, norm=torch.nn.LayerNorm(12))


def nested(torch):
    """A model in which one module occurs twice."""
    norm = torch.nn.LayerNorm(12)
    return torch.nn.Sequential(norm, torch.nn.Sequential(torch.nn.RMSNorm(12), norm), sequential(torch))


BUILDERS = {function.__name__: function for function in (sequential, encoder, nested)}


@pytest.fixture(params=BUILDERS)
def model(request, torch):
    model = BUILDERS[request.param](torch)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    return model


def results(model, x):
    """The output and the gradients of the input and of every parameter."""
    x = x.detach().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.backward(y.detach().square().cos())
    return [y.detach(), x.grad, *(weight.grad.clone() for weight in model.parameters())]


def classes(model):
    return [type(module) for module in model.modules()]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_are_as_accurate_and_revert_restores_the_bits(torch_backend, torch, fo, model, dtype):
    model, wide = model.to(getattr(torch, dtype)), copy.deepcopy(model).double()
    wide.load_state_dict(model.state_dict())
    x = torch.randn(4, 7, 12).to(getattr(torch, dtype))
    arrays = lambda model, x: [torch_backend.to_numpy(y) for y in results(model, x)]  # noqa: E731
    plain, exact, before = arrays(model, x), arrays(wide, x.double()), classes(model)
    assert converted(fo, model) is model
    assert all(issubclass(now, then) for now, then in zip(classes(model), before, strict=True))
    assert classes(model) != before
    assert_as_accurate(arrays(model, x), plain, exact, dtype)
    assert fo.revert(model) is model
    assert classes(model) == before
    assert_same_bits(arrays(model, x)[0], plain[0])


def test_state_hooks_and_optimizers_stay(torch, fo, model):
    calls = []
    for module in model.modules():
        module.register_forward_hook(lambda module, *_: calls.append(module))
    optimizer = torch.optim.AdamW(model.parameters())
    x, state = torch.randn(4, 7, 12), copy.deepcopy(model.state_dict())
    things = lambda: [*model.modules(), *model.parameters(), *model.buffers()]  # noqa: E731
    before, parameters = things(), [weight for group in optimizer.param_groups for weight in group["params"]]
    model(x)
    called = calls.copy()
    calls.clear()
    converted(fo, model)
    assert all(now is then for now, then in zip(things(), before, strict=True))
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    model(x)
    assert calls == called
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)


def test_report(torch, fo, capsys):
    nn = torch.nn
    model = nn.Sequential(
        nn.Linear(4, 4),
        nn.LayerNorm(4),
        nn.LayerNorm((3, 4)),
        nn.LayerNorm(4, elementwise_affine=False),
        nn.GELU(),
        nn.SiLU(),
        nn.SiLU(),
        nn.Dropout(0.1),
        nn.Softmax(-2),
        nn.Softmax(1),
        nn.MultiheadAttention(4, 2),
    )
    fo.convert(model)
    assert capsys.readouterr().out.splitlines() == [
        "fusedops: 4 of 12 modules of 'Sequential' replaced, 2 more on a condition",
        "     1 Dropout            -> fusedops.torch.nn.dropout.Dropout",
        "     3 LayerNorm          -> fusedops.torch.nn.normalization.LayerNorm",
        "     1 MultiheadAttention -> fusedops.torch.nn.attention.MultiheadAttention, "
        "if it is called with need_weights=False",
        "     1 Softmax            -> fusedops.torch.nn.softmax.Softmax, if dim 1 is the last of its input",
        "  kept GELU '4': torch's own kernel serves as well",
        "  kept SiLU (2): torch's own kernel serves as well",
        "  kept Softmax '8': dim -2 is not the last",
        "  no counterpart for Linear (1, 15% of the parameters), "
        "NonDynamicallyQuantizableLinear (1, 15% of the parameters)",
        "  with the same seed, dropout drops other elements than before: its random numbers are fusedops's",
    ]
    fo.convert(model)
    assert "0 of 12 modules of 'Sequential' replaced, 4 are fusedops's already" in capsys.readouterr().out
    fo.convert(model, verbose=False)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("inputs, outputs", [(216, 5003), (1001, 1064)])
def test_a_head_of_unaligned_rows(torch_backend, torch, fo, inputs, outputs, bias, capsys):
    """On a GPU in 16 bits it runs fusedops's product. Its upstream gradient comes from the loss, whose rows are padded
    there."""
    model = torch.nn.Sequential(torch.nn.Linear(64, inputs), torch.nn.Linear(inputs, outputs, bias=bias)).bfloat16()
    labels = torch.randint(outputs, (200,))
    x = torch.randn(200, 64).bfloat16()

    def step(model, loss, x):
        model.zero_grad()
        loss(model(x), labels).backward()
        return [torch_backend.to_numpy(p.grad) for p in model.parameters()]

    exact = step(copy.deepcopy(model).double(), torch.nn.functional.cross_entropy, x.double())
    theirs = step(model, torch.nn.functional.cross_entropy, x)
    fo.convert(model)
    assert "1 Linear -> fusedops.torch.conversion.linear.PlainLinear, of 16 bits on a GPU" in capsys.readouterr().out
    assert type(model[0]) is torch.nn.Linear
    few = torch.randn(1, inputs).bfloat16()
    assert (model[1].why_not(few) is None) == (torch_backend.device == "cuda" and inputs % 8 == 0)
    reason = model[1].why_not(x)
    assert (reason is None) if torch_backend.device == "cuda" else (reason == "torch's own product serves as well")
    assert_as_accurate(step(model, fo.cross_entropy, x), theirs, exact, "bfloat16")
    fo.revert(model)
    assert type(model[1]) is torch.nn.Linear


def test_a_single_module_is_a_model(torch, fo, capsys):
    loss = fo.convert(torch.nn.CrossEntropyLoss(label_smoothing=0.1))
    assert "1 of 1 modules of 'CrossEntropyLoss' replaced" in capsys.readouterr().out
    assert type(loss) is fo.nn.CrossEntropyLoss
    assert type(fo.revert(loss)) is torch.nn.CrossEntropyLoss


def test_layers_with_options_of_their_own_are_not_reverted(torch, fo):
    """torch's layers would lose them."""
    made = (fo.nn.CrossEntropyLoss(z_loss=0.1), fo.nn.RMSNorm(4, weight_offset=1.0), fo.nn.Softmax(-1, causal=True))
    plain = (fo.nn.CrossEntropyLoss(), fo.nn.RMSNorm(4), fo.nn.Softmax(-1))
    model = torch.nn.ModuleList([*made, *plain])
    before = classes(model)
    fo.revert(model)
    assert classes(model)[: 1 + len(made)] == before[: 1 + len(made)]
    assert [type(layer) for layer in model[len(made) :]] == [
        torch.nn.CrossEntropyLoss,
        torch.nn.RMSNorm,
        torch.nn.Softmax,
    ]


def test_only_exact_classes_are_replaced(torch, fo, capsys):
    class Mine(torch.nn.LayerNorm):
        def forward(self, x):
            return x

    class SubclassOfFusedops(fo.nn.RMSNorm):
        pass

    rotated = torch.nn.utils.parametrizations.weight_norm(torch.nn.LayerNorm(4), dim=None)
    model = torch.nn.Sequential(Mine(4), SubclassOfFusedops(4), fo.nn.AddLayerNorm(4), rotated)
    before = classes(model)
    fo.convert(model)
    assert classes(model) == before
    printed = capsys.readouterr().out
    for kind in ("Mine '0'", "ParametrizedLayerNorm '3'"):
        assert f"kept {kind}: a subclass of LayerNorm, which may compute something else" in printed
    fo.revert(model)
    assert classes(model) == before


def tensor_parallel():
    """transformers' module of the plans. Versions without the other one set other forwards."""
    pytest.importorskip("transformers.distributed.expert_parallel")
    return pytest.importorskip("transformers.distributed.tensor_parallel")


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_forward_set_on_an_instance_stays(torch, fo, capsys, is_planned):
    """A forward that a plan of transformers has set later calls it, too."""
    norm = torch.nn.LayerNorm(4)
    norm.forward = types.MethodType(lambda _, x: x, norm)
    if is_planned:
        tensor_parallel().ReplicatedWithGradAllReduce().install_forward(norm, None)
    with pytest.warns(UserWarning, match="nothing was converted"):
        fo.convert(norm)
    assert type(norm) is torch.nn.LayerNorm
    assert "kept LayerNorm 'LayerNorm': its forward is an attribute of its own" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_modules_are_skipped(torch, fo, capsys):
    scripted = torch.jit.trace(sequential(torch), torch.randn(3, 12))
    fo.convert(torch.nn.Sequential(scripted, torch.nn.LayerNorm(5)))
    printed = capsys.readouterr().out
    assert "1 of 9 modules of 'Sequential' replaced" in printed
    assert "(7): TorchScript has compiled it" in printed
    assert "'0': TorchScript has compiled it" in printed


@pytest.mark.parametrize("wrong", [None, "model", [1]])
def test_other_objects_than_modules_are_refused(fo, wrong):
    for function in (fo.convert, fo.revert):
        with pytest.raises(
            TypeError, match=f"fusedops.torch.{function.__name__}: model must be a torch.nn.Module; got"
        ):
            function(wrong)


@pytest.mark.parametrize("training", [False, True])
def test_an_encoder_takes_its_fast_path(torch_backend, torch, fo, training, capsys):
    """In evaluation torch computes a whole TransformerEncoderLayer in one call that reads only the norms'
    parameters."""
    model, x = encoder(torch).train(training), torch.randn(4, 7, 12)
    padding = torch.zeros(4, 7, dtype=torch.bool)
    padding[1, 5:] = True
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=padding)
        fo.convert(model)
        got = model(x, src_key_padding_mask=padding)
    line = "2 TransformerEncoderLayer -> fusedops.torch.conversion.transformer.TransformerEncoderLayer, in training"
    assert line in capsys.readouterr().out
    np.testing.assert_allclose(torch_backend.to_numpy(got), torch_backend.to_numpy(plain), rtol=1e-4, atol=1e-5)


def test_a_compiled_model_is_recompiled(torch, fo):
    graphs = []

    def backend(graph, inputs):
        graphs.append(str(graph.graph))
        return graph

    torch.compiler.reset()
    model = torch.compile(sequential(torch), fullgraph=True, backend=backend)
    x = torch.randn(4, 12)
    plain = model(x)
    assert "fusedops" not in graphs[-1]
    converted(fo, model)
    got = model(x)
    assert "fusedops.layer_norm" in graphs[-1]
    torch.testing.assert_close(got, plain)
    fo.revert(model)
    assert model(x).equal(plain)


def test_saved_whole_and_as_a_state_dict(torch, fo, model):
    converted(fo, model)
    x = torch.randn(4, 7, 12)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert classes(loaded) == classes(model)
    assert loaded(x).equal(model(x))
    assert copy.deepcopy(model)(x).equal(model(x))
    plain = fo.revert(copy.deepcopy(model))
    assert plain.load_state_dict(model.state_dict())
    assert list(plain.state_dict()) == list(model.state_dict())


@pytest.fixture
def process_group(torch_cpu):
    """A process group of this process only."""
    distributed = torch_cpu.torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_distributed_data_parallel(torch_cpu, process_group):
    torch, fo = torch_cpu.torch, torch_cpu.functions
    model = torch.nn.parallel.DistributedDataParallel(sequential(torch))
    x = torch.randn(4, 12)
    plain = results(model, x)
    converted(fo, model)
    assert type(model.module[1]) is fo.nn.LayerNorm
    torch.testing.assert_close(results(model, x), plain)


@pytest.mark.parametrize("order", ["before", "after"])
def test_tensor_parallelism(torch_cpu, process_group, order, monkeypatch):
    """Tensors are DTensors; the kernel computes their norm."""
    from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

    torch, fo = torch_cpu.torch, torch_cpu.functions
    model, x = (
        torch.nn.Sequential(torch.nn.LayerNorm(12), torch.nn.RMSNorm(12), torch.nn.Softmax(-1)),
        torch.randn(2, 4, 12),
    )
    plain = model(x)
    steps = [
        lambda: converted(fo, model),
        lambda: parallelize_module(
            model, torch.distributed.init_device_mesh("cpu", (1,)), {"0": SequenceParallel(), "1": SequenceParallel()}
        ),
    ]
    for step in steps if order == "before" else reversed(steps):
        step()
    monkeypatch.setattr(torch.nn.LayerNorm, "forward", None)
    got = model(x)
    assert type(got).__name__ == "DTensor" and type(model[0]) is fo.nn.LayerNorm
    torch.testing.assert_close(got.full_tensor(), plain)


@pytest.mark.parametrize("order", ["before", "after"])
def test_plan_of_transformers(torch_cpu, process_group, order):
    """The `forward` that a plan has set calls that of the class after conversion and reversion. Parts stay fused."""
    parallel = tensor_parallel()
    torch, fo = torch_cpu.torch, torch_cpu.functions
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    model = Family("qwen3_moe").build("float64", experts_implementation="eager").eval()
    tokens = torch.arange(11)[None]
    plain = model(tokens).logits.detach()

    def calls():
        with torch.profiler.profile() as profile:
            logits = model(tokens).logits
        limit = torch.finfo(torch.float32).eps ** 0.5 * float(plain.abs().max())  # half of the digits of their norms
        torch.testing.assert_close(logits, plain, rtol=0, atol=limit)
        return {each.name for each in profile.events() if each.name.startswith("fusedops::")}

    fo.convert(model, verbose=False)
    usual = calls()
    assert {"fusedops::experts", "fusedops::rms_norm_rope"} <= usual
    if order == "after":
        fo.revert(model)
    parallel.apply_tensor_parallelism(model, mesh, model._expand_parallel_plan(model.tp_plan))
    if order == "after":
        converted(fo, model, "Qwen3MoeExperts", "Qwen3MoeRMSNorm")
    assert calls() == usual
    norms = [module for name, module in model.named_modules() if name.endswith(("q_norm", "k_norm"))]
    assert norms and all(norm.weight._post_accumulate_grad_hooks for norm in norms)
    fo.revert(model)
    assert calls() == set()


def test_sharded_modules_are_skipped(torch_cpu, process_group, capsys):
    from torch.distributed.fsdp import fully_shard

    torch, fo = torch_cpu.torch, torch_cpu.functions
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    before, after = sequential(torch), sequential(torch)
    after.load_state_dict(before.state_dict())
    x = torch.randn(4, 12)
    plain = results(after, x)
    converted(fo, before)
    for model in (before, after):
        fully_shard(model[1], mesh=mesh)
        fully_shard(model, mesh=mesh)
    fo.convert(after)
    assert "kept FSDPLayerNorm '1': sharded by fully_shard: convert the model before" in capsys.readouterr().out
    got = [y.full_tensor() if hasattr(y, "full_tensor") else y for y in results(before, x)]
    torch.testing.assert_close(got, plain)
