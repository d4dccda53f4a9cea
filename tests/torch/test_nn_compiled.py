"""Compiled code for a GPU leaves layers to torch that are one pass over few elements."""

from __future__ import annotations

import re

import pytest

from tests.helpers.converting import converted

MIN_ELEMENTS = 64  # elements, in these tests
PASSES = {  # a layer, its arguments, its options, and its number of tensors
    "RMSNorm": ((8,), {"weight_offset": 1.0}, 1),
    "LayerNorm": ((8,), {}, 1),
    "AddRMSNorm": ((8,), {"dropout": 0.5}, 2),
    "AddLayerNorm": ((8,), {}, 2),
    "Dropout": ((0.5,), {}, 1),
    "DropoutAdd": ((0.5,), {}, 2),
    "Softmax": ((-1,), {}, 1),
}
OURS = {  # torch lacks the first three, and the last has a product
    "SwiGLU": ((), {}, 2),
    "GEGLU": ((), {}, 2),
    "BiasGELU": ((8,), {}, 1),
    "Linear": ((8, 8), {"activation": "gelu"}, 1),
}
NO_PASSES = {"attention", "cross_entropy", "gated_linear", "linear"}


@pytest.fixture(autouse=True)
def fewest(monkeypatch):
    pytest.importorskip("torch")
    from fusedops.torch.nn import layer

    monkeypatch.setattr(layer, "_FEWEST_COMPILED", MIN_ELEMENTS)


@pytest.fixture
def gpu(torch_cpu):
    """A device type for fake tensors, which have no values."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode(), torch_cpu.torch.no_grad():
        yield "cuda"


def made(backend, name, device):
    """A layer with parameters on a device that need not exist, and tensors of a call with this many rows."""
    torch = backend.torch
    arguments, options, count = (PASSES | OURS)[name]
    layer = getattr(backend.functions.nn, name)(*arguments, **options)
    for parameter, x in layer.named_parameters():
        setattr(layer, parameter, torch.nn.Parameter(torch.empty(x.shape, device=device)))
    return layer, lambda rows, dtype=torch.float32: [torch.empty(rows, 8, device=device, dtype=dtype)] * count


def compiled(torch, module, **options):
    """The module, and a list that collects the fusedops operators of each graph."""
    graphs = []

    def backend(graph, _):
        graphs.append(re.findall(r"ops\.fusedops\.(\w+)\.default", graph.code))
        return graph

    torch.compiler.reset()
    return torch.compile(module, backend=backend, fullgraph=True, **options), graphs


@pytest.mark.parametrize("name", PASSES)
def test_few_elements_are_left_to_the_compiler(torch_cpu, gpu, name):
    layer, tensors = made(torch_cpu, name, gpu)
    call, graphs = compiled(torch_cpu.torch, layer, dynamic=False)
    for rows in (7, 8):  # of 8 elements each
        call(*tensors(rows))
    few, enough = graphs
    assert not few and len(enough) == 1


@pytest.mark.parametrize("name", OURS)
def test_layers_without_a_torch_pass_are_fused_at_any_size(torch_cpu, gpu, name):
    layer, tensors = made(torch_cpu, name, gpu)
    call, graphs = compiled(torch_cpu.torch, layer)
    call(*tensors(7))
    assert len(graphs[0]) == 1


def test_a_dynamic_size_is_compiled_once(torch_cpu, gpu):
    """Crossing the threshold does not recompile."""
    layer, tensors = made(torch_cpu, "LayerNorm", gpu)
    call, graphs = compiled(torch_cpu.torch, layer, dynamic=True)
    for rows in (2, 7, 8, 100):
        call(*tensors(rows))
    assert graphs == [["layer_norm"]]


def test_mixed_dtypes_are_fused(torch_cpu, gpu):
    """torch's norm would return another one, or refuse them."""
    layer, tensors = made(torch_cpu, "LayerNorm", gpu)
    call, graphs = compiled(torch_cpu.torch, layer)
    call(*tensors(2, torch_cpu.torch.bfloat16))
    assert graphs == [["layer_norm"]]


@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm", "AddLayerNorm", "Softmax"])
def test_layers_under_autocast_are_fused(torch_cpu, gpu, name):
    """torch's pass would return float32."""
    torch = torch_cpu.torch
    layer, tensors = made(torch_cpu, name, gpu)
    for parameter, x in layer.named_parameters():
        setattr(layer, parameter, torch.nn.Parameter(x.detach().to(torch.bfloat16)))
    call, graphs = compiled(torch, layer)
    torch.set_autocast_enabled(gpu, True)  # torch.autocast checks for the GPU
    try:
        results = call(*tensors(2, torch.bfloat16))
    finally:
        torch.set_autocast_enabled(gpu, False)
    assert len(graphs[0]) == 1
    assert {y.dtype for y in (results if isinstance(results, tuple) else [results])} == {torch.bfloat16}


@pytest.mark.parametrize("name, options", [("RMSNorm", {"weight_offset": 1.0}), ("Softmax", {"scale": 0.3})])
def test_torchs_code_rounds_once(torch_cpu, monkeypatch, name, options):
    """Runs as if the device were a GPU, without a compiler that would fuse the rounded intermediate values."""
    from fusedops.torch.nn import layer as module

    torch = torch_cpu.torch
    layer = getattr(torch_cpu.functions.nn, name)(256 if name == "RMSNorm" else -1, **options).to(torch.bfloat16)
    x = torch.randn(16, 256, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16) * 20
    expected = layer(x)
    monkeypatch.setattr(module, "is_small_on_gpu", lambda *_: True)
    call, graphs = compiled(torch, layer)
    torch.testing.assert_close(call(x), expected, rtol=torch.finfo(torch.bfloat16).eps, atol=1e-30)
    assert graphs == [[]]


def test_on_a_cpu(torch_cpu):
    layer, tensors = made(torch_cpu, "LayerNorm", "cpu")
    call, graphs = compiled(torch_cpu.torch, layer)
    call(*tensors(2))
    assert graphs == [["layer_norm"]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("classes", [16, 13])
@pytest.mark.parametrize("kind", ["layer", "planes", "transformers"])
def test_a_loss_of_an_odd_number_of_classes(torch_cpu, gpu, kind, classes, dtype):
    """In 16 bits it is left to the compiler, which pads rows for the head's products."""
    torch = torch_cpu.torch
    loss = torch_cpu.functions.nn.CrossEntropyLoss()
    shape = (6, classes, 3) if kind == "planes" else (6, classes)
    logits = torch.empty(shape, device=gpu, dtype=getattr(torch, dtype))
    target = torch.zeros(shape[:1] + shape[2:], device=gpu, dtype=torch.int64)
    assert loss.why_not(logits, target) is None
    if kind == "transformers":
        pytest.importorskip("transformers")
        from fusedops.torch.conversion.hf.loss import masked_loss

        call, graphs = compiled(torch, lambda logits, labels: masked_loss(logits, labels, classes))
    else:
        call, graphs = compiled(torch, loss)
    assert call(logits, target).dtype is torch.float32
    assert graphs == [[] if classes % 8 and dtype == "bfloat16" else ["cross_entropy"]]


@pytest.mark.parametrize("target", ["int64", "int32"])
@pytest.mark.parametrize("has_own_options", [False, True])
def test_a_loss_that_is_left_to_the_compiler_is_as_exact(torch_cpu, monkeypatch, has_own_options, target):
    """Runs as if the device were a GPU."""
    from fusedops.torch.nn import losses

    torch = torch_cpu.torch
    options = {"weight": torch.arange(13).bfloat16(), "z_loss": 0.1} if has_own_options else {}
    loss = torch_cpu.functions.nn.CrossEntropyLoss(label_smoothing=0.1, **options)
    logits = torch.randn(6, 13, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    labels = torch.arange(6, dtype=getattr(torch, target))
    expected = loss(logits, labels)
    monkeypatch.setattr(losses, "padded_by_compiler", lambda *_: "it is odd")
    call, graphs = compiled(torch, loss)
    got = call(logits, labels)
    assert graphs == [[]]
    torch.testing.assert_close(got, expected)
    got, expected = (torch.autograd.grad(y, logits)[0] for y in (got, expected))
    torch.testing.assert_close(got, expected, rtol=2**-7, atol=2**-20)


def test_an_exported_program_is_fused(torch_cpu, gpu):
    layer, tensors = made(torch_cpu, "LayerNorm", gpu)
    program = torch_cpu.torch.export.export(layer, tuple(tensors(2)))
    assert "ops.fusedops.layer_norm.default" in program.graph_module.code


@pytest.mark.parametrize("name", ["bert", "gemma2", "gpt2", "llama", "phi3"])
def test_converted_models(torch_backend, fo, transformers, name, monkeypatch):
    """Each of their layers checks, as if every device were a GPU and no product too small."""
    from fusedops.torch.nn import layer
    from tests.helpers.hugging_face import FAMILIES

    monkeypatch.setattr(layer, "is_small_on_gpu", lambda x, size, fewest: size < fewest)
    torch = torch_backend.torch
    model = converted(fo, FAMILIES[name].build(device=torch_backend.device))
    model.config.use_cache = False
    tokens = torch.arange(24, device=torch_backend.device).view(2, 12) + 5
    expected = model(tokens, labels=tokens)
    found = {}
    for size in (2**30, 0):
        monkeypatch.setattr(layer, "_FEWEST_COMPILED", size)
        call, graphs = compiled(torch, model)
        got = call(tokens, labels=tokens)
        torch.testing.assert_close((got.loss, got.logits), (expected.loss, expected.logits), rtol=1e-4, atol=1e-4)
        found[size] = set(graphs[0])
    assert found[2**30] <= NO_PASSES and found[0] - NO_PASSES


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_small_passes_of_converted_models_are_chosen_first(torch_cpu, fo, transformers, name, monkeypatch):
    """As if the device were a GPU. Blocks and norms of few elements read none of the tables of their classes, since
    each call evaluates a guard for all that was read."""
    from fusedops.torch.nn import layer
    from tests.helpers.hugging_face import FAMILIES

    monkeypatch.setattr(layer, "is_small_on_gpu", lambda x, size, fewest: size < fewest)
    torch = torch_cpu.torch
    model = converted(fo, FAMILIES[name].build(device="cpu"))
    model.config.use_cache = False
    tokens = torch.arange(24).view(2, 12) + 5

    def tables(fewest):
        found = []

        def keep_all(entries):
            found.extend(entry.name for entry in entries)
            return [True] * len(entries)

        monkeypatch.setattr(layer, "_FEWEST_COMPILED", fewest)
        torch.compiler.reset()
        torch.compile(model, backend="eager", options={"guard_filter_fn": keep_all})(tokens, labels=tokens)
        return [x for x in found if re.search(r"'forwarded'|(norm|ln_\w+)'\].*\['names'\]", x)]

    assert tables(0)
    assert tables(2**30) == []
