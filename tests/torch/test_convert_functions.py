"""fusedops.torch.convert(model, functions=True): calls of torch.nn.functional in a user's forward."""

from __future__ import annotations

import io

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional
shared_softmax = F.softmax


class Block(torch.nn.Module):
    """Calls the functions by every way to name them."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(8))
        self.F = 2  # not a module

    def forward(self, x, labels):
        x = F.layer_norm(x, (8,), self.weight)
        x = torch.nn.functional.rms_norm(x, [8], self.weight)
        x = torch.nn.functional.softmax(x, dim=-1) + shared_softmax(x, -1)
        x = sum([F.softmax(x, -1) for _ in range(self.F)])
        q, k, v = (x.view(1, 1, 4, 8) for _ in range(3))
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True).view(4, 8)
        return F.cross_entropy(torch.relu(x), labels, label_smoothing=0.1)


class Inherits(Block):
    pass


class Overrides(Block):
    def forward(self, x, labels):
        return x.sum()


class Decorated(torch.nn.Module):
    @torch.no_grad()
    def forward(self, x):
        return F.softmax(x, -1)


class Counts(torch.nn.Module):
    def forward(self, x):
        global calls
        calls = 1
        return F.softmax(x, -1)


@pytest.fixture
def inputs(torch_backend):
    torch.manual_seed(0)
    with torch.device(torch_backend.device):
        return torch.randn(4, 8, requires_grad=True), torch.tensor([1, 2, -100, 3])


def results(model, inputs):
    loss = model(*inputs)
    return [loss.detach(), *torch.autograd.grad(loss, [inputs[0], *model.parameters()])]


def test_the_same_results(torch_backend, fo, inputs, capsys):
    model = Inherits().to(torch_backend.device)
    plain = results(model, inputs)
    graphs = []

    def backend(graph, _):
        graphs.append(graph.code)
        return graph

    fo.convert(torch.nn.ModuleList([model, Overrides()]), functions=True)
    assert capsys.readouterr().out.splitlines() == [
        "fusedops: 1 of 2 modules of 'ModuleList' replaced",
        "     1 Inherits -> the same code with fusedops's cross_entropy, layer_norm, rms_norm, "
        "scaled_dot_product_attention, softmax",
        "  no counterpart for Overrides (1, 50% of the parameters)",
        "  with the same seed, dropout drops other elements than before: its random numbers are fusedops's",
    ]
    torch.testing.assert_close(results(model, inputs), plain)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(results(compiled, inputs), plain)
    (code,) = graphs
    counts = {"attention": 1, "cross_entropy": 1, "layer_norm": 1, "rms_norm": 1, "softmax": 4}
    assert {name: code.count(f"ops.fusedops.{name}.default") for name in counts} == counts
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is type(model)
    assert type(fo.revert(model)) is Inherits
    assert results(model, inputs)[0].equal(plain[0])


def test_models_of_transformers(torch_backend, fo, transformers, capsys):
    """Functions besides the replaced modules; loss, logits and gradients."""
    from audits.families.equality import LIMIT, difference
    from audits.families.hugging_face import families
    from audits.families.inputs import inputs_of
    from tests.helpers.torch_models import arrays, outputs
    from tests.helpers.torch_models import results as results_of

    model = families()["mixtral"].build(device=torch_backend.device)
    inputs = inputs_of(model)
    plain = arrays(results_of(model, inputs))
    fo.convert(model, functions=True)
    printed = [line.split() for line in capsys.readouterr().out.splitlines() if "the same code" in line]
    assert [words[:2] for words in printed] == [["2", "MixtralTopKRouter"]]
    assert difference(arrays(results_of(model, inputs)), plain) <= LIMIT
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        outputs(model, inputs)
    assert sum(event.count for event in profile.key_averages() if event.key == "fusedops::softmax") == 2


def test_skipped_calls_and_reasons(fo, capsys):
    fo.convert(torch.nn.Sequential(Decorated(), Counts(), torch.nn.Softmin(), torch.nn.Softmax(0)), functions=True)
    printed = capsys.readouterr().out
    assert "kept Decorated '0': its forward is decorated, so that functions in it are not replaced" in printed
    assert "kept Counts '1': its forward sets a global variable" in printed
    assert "no counterpart for Softmin (1)" in printed
    with pytest.warns(UserWarning, match="nothing was converted"):
        fo.convert(Block())


def mask(x):
    return torch.ones(4, 4, dtype=torch.bool, device=x.device).tril()


def attended(f, x, *others, keys=None, **options):
    """One head of the queries x."""
    keys = (x if keys is None else keys)[None]
    if keys.dim() < 4:
        keys = keys[None]
    return f.scaled_dot_product_attention(x[None, None], keys, keys, *others, **options)


# Calls that the kernels compute, and torch's results in a dtype of their own.
ATTENTIONS = {
    "causal": lambda f, q, k, v, mask: f(q, k, v, is_causal=True),
    "few-queries": lambda f, q, k, v, mask: f(q[..., :2, :], k, v, scale=0.3),
    "mask": lambda f, q, k, v, mask: f(q, k, v, mask),
    "mask-of-one-head": lambda f, q, k, v, mask: f(q, k, v, mask[None, None]),
    "bias": lambda f, q, k, v, mask: f(q, k, v, 3 * mask.to(q.dtype)),
    "bias-of-each-head": lambda f, q, k, v, mask: f(q, k, v, q[..., :5]),
    "mask-of-numbers": lambda f, q, k, v, mask: f(q, k, v, torch.where(mask, q[:, :1, :, :5], -torch.inf)),
    "grouped": lambda f, q, k, v, mask: f(q, k[:, :2], v[:, :2], is_causal=True, enable_gqa=True),
    "three-dimensions": lambda f, q, k, v, mask: f(q[0], k[0], v[0], is_causal=True),
    "five-dimensions": lambda f, q, k, v, mask: f(q[None], k[None], v[None, ..., :3]),
}


@pytest.mark.parametrize("case", ATTENTIONS)
def test_attention(torch_backend, case):
    """torch's results and layout, by the kernel."""
    from fusedops.torch.conversion import functional

    torch.manual_seed(0)
    with torch.device(torch_backend.device):
        tensors = [torch.randn(2, 5, 4, 8, dtype=torch.float64).transpose(1, 2) for _ in range(3)]
        mask = torch.randn(5, 5) > -0.5
    expected = ATTENTIONS[case](F.scaled_dot_product_attention, *tensors, mask)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        got = ATTENTIONS[case](functional.scaled_dot_product_attention, *tensors, mask)
    assert [event.count for event in profile.key_averages() if event.key == "fusedops::attention"] == [1]
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    assert got.transpose(-3, -2).is_contiguous()


OTHERS = {
    "softmax of a first dimension": lambda f, x: f.softmax(x, 0),
    "softmax to another dtype": lambda f, x: f.softmax(x, -1, dtype=torch.float64),
    "softmax of integers": lambda f, x: f.softmax(x.to(torch.int32), -1, dtype=torch.float32),
    "softmax without a dimension": lambda f, x: f.softmax(x),
    "softmax of a scalar": lambda f, x: f.softmax(x[0, 0], 0),
    "layer_norm of two dimensions": lambda f, x: f.layer_norm(x, x.shape),
    "layer_norm of another size": lambda f, x: f.layer_norm(x, (7,)),
    "layer_norm with a wrong weight": lambda f, x: f.layer_norm(x, (8,), x[0, :7]),
    "rms_norm without eps": lambda f, x: f.rms_norm(x, (8,)),
    "rms_norm of 16 bits": lambda f, x: f.rms_norm(x.bfloat16(), (8,)),
    "cross_entropy with weights": lambda f, x: f.cross_entropy(
        x, x[:, 0].abs().long(), x[0].abs(), label_smoothing=0.1
    ),
    "cross_entropy with wide weights": lambda f, x: f.cross_entropy(x, x[:, 0].abs().long(), x[0].abs().double()),
    "cross_entropy of probabilities": lambda f, x: f.cross_entropy(x, x.softmax(-1)),
    "cross_entropy of 16 bits": lambda f, x: f.cross_entropy(x.bfloat16(), x[:, 0].abs().long()),
    "cross_entropy of planes": lambda f, x: f.cross_entropy(x[None], x[:1].abs().long() % 4, reduction="none"),
    "cross_entropy of too many labels": lambda f, x: f.cross_entropy(x, torch.zeros(5, dtype=torch.int64)),
    "attention with a bias of another dtype": lambda f, x: attended(f, x, x[:, :4].double()),
    "attention with a mask of other numbers": lambda f, x: attended(f, x.double(), x[:, :4]),
    "attention with fewer queries": lambda f, x: attended(f, x[:2], is_causal=True, keys=x),
    "attention with a mask and causality": lambda f, x: attended(f, x, mask(x), is_causal=True),
    "attention with broadcast heads": lambda f, x: attended(f, x, keys=x.expand(2, 4, 8)),
    "attention of two dtypes": lambda f, x: attended(f, x.double(), keys=x),
    "attention of long features": lambda f, x: attended(f, x.repeat(1, 40)),
    "attention of integers": lambda f, x: attended(f, x.int()),
    "attention with dropout of all": lambda f, x: attended(f, x, dropout_p=1.0),
    "cross_entropy reduced in another way": lambda f, x: f.cross_entropy(x, x[:, 0].abs().long(), reduction="max"),
}


def negatively_weighted(functions, x):
    return functions.cross_entropy(x, x[:, 0].abs().long(), x[0] - 9)


@pytest.mark.filterwarnings("ignore:Implicit dimension choice:UserWarning")
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("case", OTHERS)
def test_functions_are_those_of_torch(torch_backend, inputs, case, autocast):
    """Results, their dtypes and errors."""
    from fusedops.torch.conversion import functional

    if autocast and torch_backend.device != "cpu" and case == "attention with dropout of all":
        pytest.skip("torch's own kernel for 16 bits ends the process")

    def outcome(module):
        try:
            with torch.autocast(torch_backend.device, torch.bfloat16, autocast):
                return OTHERS[case](module, inputs[0].detach())
        except Exception as error:
            return type(error), str(error)

    expected, got = outcome(F), outcome(functional)
    if isinstance(expected, tuple):
        assert got == expected
    else:  # on a GPU, torch's autocast may round intermediate values
        rounds = autocast and torch_backend.device != "cpu"
        # torch's dropout of all is NaN on a GPU: 0 / (1 - 1)
        torch.testing.assert_close(got, expected, equal_nan=True, **({"rtol": 2**-8, "atol": 0} if rounds else {}))


@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
def test_negative_weights_of_classes(torch_backend, inputs, autocast):
    """torch's loss on a CPU, where the operator refuses them, and NaN on a GPU, which cannot."""
    from fusedops.torch.conversion import functional

    with torch.autocast(torch_backend.device, torch.bfloat16, autocast):
        got = negatively_weighted(functional, inputs[0].detach())
        expected = negatively_weighted(F, inputs[0].detach())
    if torch_backend.device == "cpu":
        torch.testing.assert_close(got, expected)
    else:
        assert got.isnan()
