"""The PyTorch layers: values and gradients against torch's own, calls left to torch, errors, autocast."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.helpers.numerics import assert_accurate
from tests.helpers.specification import any_order
from tests.helpers.torch_layers import (
    CASES,
    Case,
    classified,
    numbers,
    ours,
    reference,
    set_random_parameters,
    value_and_gradients,
)

ALL = pytest.mark.parametrize("case", CASES, ids=str)
NORMS = ("RMSNorm", "LayerNorm")


def layers(case, backend, dtype, random):
    """The fusedops layer in this dtype, and the reference in float64, with the same parameters."""
    torch = backend.torch
    made = (
        ours(case).to(backend.device, getattr(torch, dtype)),
        reference(case).to(backend.device, torch.float64),
    )
    set_random_parameters(made, random)
    return made


def assert_close(backend, case, got, expected, dtype):
    """Compares each result. The reference errs as well, which matters for float64."""
    arrays = case.arrays(np.random.default_rng(0))
    terms = max(arrays[0].size // min(arrays[0].shape), max(arrays[0].shape))  # of the longest sum
    for i, (value, exact) in enumerate(zip(got, expected, strict=True)):
        exact = backend.to_numpy(exact)
        magnitude = np.full(exact.shape, np.abs(exact).max(initial=0))
        label, storage = f"result {i}", (case.stored, dtype)
        assert_accurate(backend.to_numpy(value), exact, magnitude, 4 * any_order(terms), label, storage)


def test_a_missing_kernel_is_an_error(torch_cpu, monkeypatch):
    """The error is not about inputs, for which torch's own layer would be consulted."""
    torch, fo = torch_cpu.torch, torch_cpu.functions
    sentence = "fusedops: cross_entropy was called on a GPU, and this build has no CUDA kernels"
    monkeypatch.setattr(fo, "cross_entropy", lambda *_, **__: (_ for _ in ()).throw(RuntimeError(sentence)))
    with pytest.raises(RuntimeError, match=sentence):
        fo.nn.CrossEntropyLoss()(torch.ones(2, 3), torch.zeros(2, dtype=torch.int64))


@ALL
def test_values_and_gradients(torch_backend, case, dtype, random):
    torch = torch_backend.torch
    layer, exact_layer = layers(case, torch_backend, dtype, random)
    exact_inputs = case.tensors(torch_backend, "float64", random)
    inputs = [x.to(getattr(torch, dtype)) if x.is_floating_point() else x for x in exact_inputs]
    assert layer.why_not() is None
    on_cpu = torch_backend.device == "cpu" and case.is_linear and inputs[0].element_size() == 2
    reason = f"on a CPU, torch's own products of {dtype} are faster" if on_cpu else None
    assert layer.why_not(*inputs) == reason
    got = value_and_gradients(torch_backend, layer, inputs)
    expected = value_and_gradients(torch_backend, exact_layer, exact_inputs)
    assert {x.device.type for x in got} == {torch_backend.device}
    is_loss = case.layer.endswith("CrossEntropyLoss")
    of_result = "float32" if is_loss and dtype != "float64" else dtype
    assert torch_backend.dtype_of(got[0]) == of_result
    assert all(torch_backend.dtype_of(x) == dtype for x in got[1:])
    assert_close(torch_backend, case, got, expected, dtype)


@pytest.mark.parametrize("case", [case for case in CASES if case.layer.endswith(("Norm", "BiasGELU"))], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float32_parameters_beside_16_bits(torch_backend, case, dtype, random):
    layer, exact_layer = layers(case, torch_backend, "float32", random)
    exact_inputs = case.tensors(torch_backend, "float64", random)
    inputs = [x.to(getattr(torch_backend.torch, dtype)) for x in exact_inputs]
    got = value_and_gradients(torch_backend, layer, inputs)
    of_parameters = len(list(layer.parameters()))
    of_results = len(got) - of_parameters
    dtypes = list(map(torch_backend.dtype_of, got))
    assert dtypes == [dtype] * of_results + ["float32"] * of_parameters
    assert_close(torch_backend, case, got, value_and_gradients(torch_backend, exact_layer, exact_inputs), dtype)


def test_what_is_left_to_torch_has_its_bits(torch_backend, torch, fnn, random):
    x = torch_backend.from_numpy(numbers((4, 6, 8), random)).float()
    positive = x.abs() + 1
    weights, probabilities = positive[0, 0], x.transpose(1, 2).softmax(1)
    labels = torch_backend.from_numpy(classified((4, 8, 6), random)[1])
    nested = torch.nested.nested_tensor(list(x), layout=torch.jagged)
    for name, arguments, inputs, reason in (
        ("RMSNorm", {"normalized_shape": 8}, (torch.complex(x, x),), "the input is complex64"),
        ("LayerNorm", {"normalized_shape": 8}, (nested,), "the input is jagged"),
        ("Softmax", {"dim": 1}, (x,), "dim 1 is not the last"),
        ("Softmax", {"dim": -3}, (x,), "dim -3 is not the last"),
        ("Softmax", {"dim": -1}, (x[0, 0, 0],), "the input has no dimension"),
        ("CrossEntropyLoss", {"weight": weights.double()}, (x[0].double(), labels[0]), "weight is float64"),
        ("CrossEntropyLoss", {}, (x.transpose(1, 2), probabilities), "the target holds probabilities"),
        ("CrossEntropyLoss", {"ignore_index": 3}, (x[0], torch.tensor([3, 1] * 3).byte().to(x.device)), "uint8"),
    ):
        layer, of_torch = getattr(fnn, name)(**arguments), getattr(torch.nn, name)(**arguments)
        layer, of_torch = layer.to(x.device), of_torch.to(x.device)
        assert layer.why_not(*inputs).endswith(reason)
        got, expected = layer(*inputs), of_torch(*inputs)
        if got.is_nested:
            got, expected = got.values(), expected.values()
        assert torch.equal(got, expected), name


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_z_loss_beside_what_is_left_to_torch(torch_backend, torch, fnn, reduction, random):
    """Weights of float64, other dtypes of labels, probabilities, and shapes that the operator refuses."""
    logits, labels = (torch_backend.from_numpy(array) for array in classified((4, 8, 6), random, ignored=3))
    weights = torch_backend.from_numpy(random.random(8))
    options = {"reduction": reduction, "ignore_index": 3, "z_loss": 0.2}
    weighted = fnn.CrossEntropyLoss(weights, **options)
    assert weighted.why_not(logits, labels) == "weight is float64"
    exact = torch_backend.functions.cross_entropy(
        logits.movedim(1, -1), labels, **options, class_weight=weights.float().contiguous()
    )
    torch.testing.assert_close(weighted(logits, labels), exact, rtol=1e-6, atol=0)
    loss = fnn.CrossEntropyLoss(**options)
    rows, of_rows = logits[0].T, labels[0]
    torch.testing.assert_close(loss(rows, of_rows.byte()), loss(rows, of_rows))
    column = of_rows[1:2]  # torch takes one label of logits without rows
    torch.testing.assert_close(loss(rows[1], column), loss(rows[1:2], column).reshape(loss(rows[1], column).shape))
    extra = 0.2 * logits.logsumexp(1) ** 2
    added = {"mean": extra.mean(), "sum": extra.sum(), "none": extra}[reduction]
    loss, plain = (fnn.CrossEntropyLoss(reduction=reduction, z_loss=z_loss) for z_loss in (0.2, 0.0))
    torch.testing.assert_close(loss(logits, logits.softmax(1)), plain(logits, logits.softmax(1)) + added)


def test_negative_class_weights(torch_backend, torch, fnn, random):
    """torch accepts them, and its code computes them on a CPU. On a GPU they give NaN."""
    logits, weights = (torch_backend.from_numpy(numbers(shape, random)).float() for shape in ((4, 5), (5,)))
    labels = torch.arange(4, device=logits.device)
    weights = weights.abs()
    weights[2] *= -1
    got, expected = (each.CrossEntropyLoss(weights)(logits, labels) for each in (fnn, torch.nn))
    if torch_backend.device == "cpu":
        assert torch.equal(got, expected)
    else:
        assert got.isnan() and not expected.isnan()
    with pytest.raises(RuntimeError, match=r"class_weight must not be negative; got .* for class 2"):
        torch_backend.functions.cross_entropy(logits.cpu(), labels.cpu(), class_weight=weights.cpu())
    loss = fnn.LinearCrossEntropyLoss(5, 5, weight=weights).to(logits.device)
    if torch_backend.device == "cpu":
        with pytest.raises(RuntimeError, match="class_weight must not be negative"):
            loss(logits, labels)
    else:
        assert loss(logits, labels).isnan()


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_a_softmax_without_a_dimension(torch_backend, torch, fnn, random):
    x = torch_backend.from_numpy(numbers((5, 7), random))
    layer = fnn.Softmax()
    assert layer.why_not(x) == layer.why_not() == "dim is None"
    assert torch.equal(layer(x), torch.nn.Softmax()(x))


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_integers_meet_the_error_of_torch(torch_backend, torch, fnn, dtype):
    x = torch.ones(2, 8, dtype=getattr(torch, dtype), device=torch_backend.device)
    for layer, of_torch in (
        (fnn.RMSNorm(8), torch.nn.RMSNorm(8)),
        (fnn.LayerNorm(8), torch.nn.LayerNorm(8)),
        (fnn.Softmax(-1), torch.nn.Softmax(-1)),
    ):
        layer, of_torch = layer.to(x.device), of_torch.to(x.device)
        assert layer.why_not(x) == f"the input is {dtype}"
        with pytest.raises((RuntimeError, NotImplementedError)) as expected:
            of_torch(x)
        with pytest.raises(type(expected.value), match=re.escape(str(expected.value).splitlines()[0])):
            layer(x)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("of_input", ["float64", "float32", "float16"])
@pytest.mark.parametrize("layer", ["RMSNorm", "LayerNorm"])
def test_pairs_of_dtypes_without_a_kernel_are_left_to_torch(torch_backend, torch, fnn, layer, of_input, autocast):
    """Either torch computes them, as under CUDA's autocast, or it raises an error."""
    x = torch_backend.from_numpy(numbers((4, 8), np.random.default_rng(0))).to(getattr(torch, of_input))
    layers = [getattr(of, layer)(8, device=x.device, dtype=torch.bfloat16) for of in (fnn, torch.nn)]
    assert layers[0].why_not(x) == f"the weight is bfloat16 beside an input of {of_input}"
    found = []
    for each in layers:
        with torch.autocast(torch_backend.device, torch.bfloat16, enabled=autocast):
            try:
                found.append(each(x))
            except RuntimeError as error:
                found.append(str(error).splitlines()[0])
    got, expected = found
    assert got == expected if isinstance(expected, str) else torch.equal(got, expected)


@pytest.mark.parametrize("options", [{"scale": 0.3}, {"causal": True}, {"scale": 2.0, "causal": True}], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -2])
@pytest.mark.parametrize("has_mask", [False, True])
def test_softmax_over_another_dimension(torch_backend, options, dim, has_mask, random):
    """torch's own code, which has neither of the options."""
    case = Case("Softmax", (dim,), options)
    layer, exact_layer = layers(case, torch_backend, "float64", random)
    x = torch_backend.from_numpy(numbers((3, 5, 7), random))
    inputs = (x, torch_backend.from_numpy(random.random((5, 7)) < 0.4)) if has_mask else (x,)
    got, expected = (value_and_gradients(torch_backend, each, inputs) for each in (layer, exact_layer))
    assert_close(torch_backend, case, got, expected, "float64")


def test_weight_offset_beside_what_is_left_to_torch(torch_backend, torch, fnn, random):
    x = torch_backend.from_numpy(numbers((4, 8), random))
    z = torch.complex(x, x)
    layer = fnn.RMSNorm(8, weight_offset=1.0, device=x.device)
    expected = torch.nn.RMSNorm(8, device=x.device)(z)
    assert torch.equal(layer(z), expected)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_labels(torch_backend, torch, fnn, dtype, random):
    logits, labels = classified((4, 8, 6), random)
    logits, labels = torch_backend.from_numpy(logits), torch_backend.from_numpy(labels)
    loss = fnn.CrossEntropyLoss()
    found = loss(logits, labels.to(getattr(torch, dtype)))
    torch.testing.assert_close(found, torch.nn.CrossEntropyLoss()(logits, labels))


def test_logits_must_be_a_tensor(torch, fnn):
    with pytest.raises(TypeError, match="cross_entropy"):
        fnn.CrossEntropyLoss()([1.0, 2.0], torch.tensor(1))


def test_classes_side_by_side_are_read_in_place(torch_cpu):
    """The operator sees rows, without a copy."""
    torch, fo = torch_cpu.torch, torch_cpu.functions
    logits = torch.randn(2, 5, 7)
    loss = fo.nn.CrossEntropyLoss()
    labels = torch.zeros(2, 5, dtype=torch.int64)
    assert logits.transpose(1, 2).movedim(1, -1).is_contiguous()
    assert torch.equal(loss(logits.transpose(1, 2), labels), fo.cross_entropy(logits, labels))


def test_eps_of_none_is_that_of_the_dtype_of_computation(torch_backend, torch, fnn, dtype):
    x = torch.full((1, 4), 1e-3, dtype=getattr(torch, dtype), device=torch_backend.device)
    found = fnn.RMSNorm(4, elementwise_affine=False)(x)
    wide = x.double()
    eps = torch.finfo(torch.float64 if dtype == "float64" else torch.float32).eps
    exact = wide / (wide.square().mean() + eps).sqrt()
    torch.testing.assert_close(found, exact.to(x.dtype))
    # torch rounds eps, but not to fewer bits than it computes with.
    torch.testing.assert_close(found, torch.nn.RMSNorm(4, elementwise_affine=False)(x))


# All other messages are the operators', and are tested with them.
@pytest.mark.parametrize(
    "make, sentence",
    [
        (
            lambda fnn, x: fnn.AddLayerNorm((6, 8), elementwise_affine=False)(x, x[0, 0]),
            "fusedops.torch.nn.AddLayerNorm: the shape of residual must end with normalized_shape, [6, 8]; got [8]",
        ),
        (lambda fnn, x: fnn.RMSNorm(8)(None), "fusedops.rms_norm: x must be a tensor; got NoneType"),
        (lambda fnn, x: fnn.AddRMSNorm(8)(x, None), "fusedops.add_rms_norm: residual must be a tensor; got NoneType"),
        (
            lambda fnn, x: fnn.AddRMSNorm(8, device=x.device)(x, x[0]),
            "fusedops.add_rms_norm: residual must have x's shape, [2, 6, 8]; got [6, 8]",
        ),
        (lambda fnn, x: fnn.Linear(8, 2)(None), "fusedops.linear: x must be a tensor; got NoneType"),
        (
            lambda fnn, x: fnn.Linear(8, 2, activation="elu"),
            "fusedops.torch.nn.Linear: activation must be one of identity, relu, gelu, gelu_tanh, silu, sigmoid, tanh; "
            "got 'elu'",
        ),
        (lambda fnn, x: fnn.GatedLinear(8, 2, activation=None), "fusedops.torch.nn.GatedLinear: activation must be"),
        (
            lambda fnn, x: fnn.GatedLinear(7, 2, device=x.device)(x),
            "fusedops.gated_linear: gate_weight must have 8 columns to multiply x of shape [2, 6, 8]; got shape [2, 7]",
        ),
        (lambda fnn, x: fnn.GEGLU("erf"), "fusedops.torch.nn.GEGLU: approximate must be 'none' or 'tanh'; got 'erf'"),
        (lambda fnn, x: fnn.BiasGELU(8, "erf"), "fusedops.torch.nn.BiasGELU: approximate must be"),
        (
            lambda fnn, x: fnn.RotaryEmbedding(7),
            "fusedops.torch.nn.RotaryEmbedding: dim must be a positive, even number; got 7",
        ),
        (
            lambda fnn, x: fnn.RotaryEmbedding(8, 5, seq_dim=-2, device=x.device)(x),
            "fusedops.torch.nn.RotaryEmbedding: x must have at most max_seq_len = 5 positions; got 6",
        ),
        (lambda fnn, x: fnn.RotaryEmbedding(8)(None), "fusedops.rope: x must be a tensor; got NoneType"),
        (lambda fnn, x: fnn.RotaryEmbedding(8, device=x.device)(x[0]), "fusedops.rope: x must have"),
        (
            lambda fnn, x: fnn.RotaryEmbedding(8, device=x.device)(x.double()),
            "fusedops.rope: cos must have x's dtype, float64; got float32",
        ),
        (
            lambda fnn, x: fnn.LinearCrossEntropyLoss(7, 3, device=x.device)(x, x[..., 0].long()),
            "fusedops.linear_cross_entropy: weight must have 8 columns to multiply x of shape [2, 6, 8]; "
            "got shape [3, 7]",
        ),
        (
            lambda fnn, x: fnn.CrossEntropyLoss(reduction="max")(x[0], x[0, :, 0].long()),
            "fusedops.cross_entropy: reduction must be",
        ),
        *(
            (make, f"fusedops.{operator}: z_loss must be a finite number, at least 0; got -0.5")
            for operator, make in (
                ("cross_entropy", lambda fnn, x: fnn.CrossEntropyLoss(z_loss=-0.5)(x[0], x[0, :, 0].long())),
                ("cross_entropy", lambda fnn, x: fnn.CrossEntropyLoss(z_loss=-0.5)(x[0], x[0])),
                (
                    "linear_cross_entropy",
                    lambda fnn, x: fnn.LinearCrossEntropyLoss(8, 8, z_loss=-0.5, device=x.device)(x, x),
                ),
            )
        ),
    ],
)
def test_errors(torch_backend, torch, fnn, make, sentence):
    x = torch.ones(2, 6, 8, device=torch_backend.device)
    with pytest.raises(torch_backend.errors, match=re.escape(sentence)):
        make(fnn, x)


def error_of(layer, inputs):
    with pytest.raises((RuntimeError, ValueError, TypeError, IndexError)) as caught:
        layer(*inputs)
    return caught.value


@pytest.mark.parametrize(
    ("kind", "options", "shapes"),
    [
        *((norm, {"normalized_shape": 8, **other}, [(3, 7)]) for norm in NORMS for other in ({}, {"eps": 1e-3})),
        *((norm, {"normalized_shape": (3, 4)}, [shape]) for norm in NORMS for shape in ((2, 4, 3), (2, 12), (4,))),
        *((norm, {"normalized_shape": 8, "elementwise_affine": False}, [(3, 7)]) for norm in NORMS),
        *(
            ("CrossEntropyLoss", {}, shapes)
            for shapes in ([(3, 5), (2,)], [(3, 5), (3, 1)], [(3, 5, 2), (3, 4)], [(), ()])
        ),
        ("CrossEntropyLoss", {"label_smoothing": 1.5}, [(3, 5), (3,)]),
        ("Linear", {"in_features": 8, "out_features": 2}, [(3, 7)]),
    ],
)
def test_errors_are_those_of_torchs_layer(torch_backend, torch, fnn, kind, options, shapes):
    """The class and the text, which is about inputs and not about an operator's parameters."""
    x, *target = (torch.ones(shape, device=torch_backend.device) for shape in shapes)
    inputs = [x, *(labels.long() for labels in target)]
    own = error_of(getattr(torch.nn, kind)(**options).to(x.device), inputs)
    found = [error_of(getattr(fnn, kind)(**options).to(x.device), inputs)]
    if kind in NORMS:
        found.append(error_of(getattr(fnn, f"Add{kind}")(**options).to(x.device), (x, x)))
    for error in found:
        assert (type(error), str(error)) == (type(own), str(own))


@pytest.mark.parametrize("label", [-1, 5, -100])
@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 2), (5,), (3, 0)])
def test_a_label_outside_the_classes(torch_cpu, label, shape):
    import fusedops.torch.nn as fnn

    torch = torch_cpu.torch
    labels = torch.full(shape[:1] + shape[2:] if len(shape) > 1 else (), label)
    layers = (package.CrossEntropyLoss(ignore_index=2) for package in (fnn, torch.nn))
    found, own = (error_of(layer, (torch.ones(shape), labels)) for layer in layers)
    assert type(found) is type(own) is IndexError
    assert str(found) == str(own)


def test_torch_computes_the_loss_that_the_operator_refuses(torch_backend, torch, fnn):
    logits, label = torch.ones(5, device=torch_backend.device), torch.zeros(1, dtype=torch.int64)
    label = label.to(torch_backend.device)
    assert torch.equal(fnn.CrossEntropyLoss()(logits, label), torch.nn.CrossEntropyLoss()(logits, label))


def test_autocast(torch_backend, torch, fnn, random):
    """The layers compute in their inputs' dtype: 16 bits after a product, with parameters in float32."""
    device = torch_backend.device
    x = torch_backend.from_numpy(numbers((4, 6, 8), random)).float()
    product = torch.nn.Linear(8, 8, device=device)
    norm, add_norm = fnn.LayerNorm(8, device=device), fnn.AddRMSNorm(8, eps=1e-6, device=device)
    loss = fnn.CrossEntropyLoss()
    with torch.autocast(device, torch.bfloat16):
        h = product(x)
        y, s = add_norm(h, x)  # of two dtypes
        total = loss(h.flatten(0, 1), torch.zeros(24, dtype=torch.int64, device=device))
        assert (h.dtype, norm(h).dtype, norm(x).dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    assert (y.dtype, s.dtype, total.dtype) == (torch.float32,) * 3
    assert torch.equal(s, h + x)
    assert torch.equal(y, fnn.RMSNorm(8, eps=1e-6, device=device)(s))
    (y.sum() + total).backward()
    assert all(p.grad.dtype == torch.float32 for p in (product.weight, add_norm.weight))
