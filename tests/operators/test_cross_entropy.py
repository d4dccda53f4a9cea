"""Cross entropy: invalid labels, ignored rows, vocabularies of many segments."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from tests.helpers.checks import check_backward, check_forward
from tests.helpers.numerics import assert_same_bits
from tests.helpers.specification import Like, Sample
from tests.specifications.cross_entropy import IGNORED, SPECIFICATION, call


def loss_and_gradient(backend, dtype, logits, labels, **options):
    inputs = backend.tensors(Sample({"logits": logits, "labels": labels}), dtype)
    outputs, gradients = backend.gradients("cross_entropy", inputs, options, ("logits",))
    return backend.to_numpy(outputs[0]), backend.to_numpy(gradients["logits"])


INVALID = [5, -1, IGNORED + 1, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize(
    ("label", "integers"),
    [*itertools.product(INVALID, ["int32", "int64"]), (2**40, "int64"), (-(2**40), "int64"), (2**32 + 1, "int64")],
)
def test_labels_that_are_no_class(any_backend, dtype, label, integers, random):
    """An error on a CPU; on a GPU, which cannot raise one, NaN in that row, its gradient and the mean only."""
    logits, labels = random.normal(size=(4, 5)), np.array([1, 2, label, 4], integers)
    if any_backend.device == "cpu":
        sentence = f"fusedops.cross_entropy: labels must be in [0, 5) or ignore_index, -100; got {label} in row 2"
        with pytest.raises(any_backend.errors, match=re.escape(sentence)):
            loss_and_gradient(any_backend, dtype, logits, labels)
        return
    loss, gradient = loss_and_gradient(any_backend, dtype, logits, labels, reduction="none")
    assert np.isnan(loss).tolist() == [False, False, True, False]
    assert np.isnan(gradient.astype(float)).all(1).tolist() == [False, False, True, False]
    assert np.isnan(loss_and_gradient(any_backend, dtype, logits, labels)[0])


def test_no_label_is_ignored(any_backend, random):
    """The error does not mention the least integer as ignore_index, which Keras's losses pass."""
    if any_backend.device != "cpu":
        pytest.skip("a GPU raises no error for a label")
    rows = {"logits": random.normal(size=(3, 5)), "x": random.normal(size=(3, 4)), "weight": random.normal(size=(5, 4))}
    tensors = any_backend.tensors(Sample({**rows, "labels": np.array([1, 2, 7])}), "float32")
    logits, x, weight, labels = tensors.values()
    for name, inputs in (
        ("cross_entropy", {"logits": logits, "labels": labels}),
        ("linear_cross_entropy", {"x": x, "weight": weight, "labels": labels}),
    ):
        with pytest.raises(any_backend.errors, match=rf"fusedops\.{name}: labels must be in \[0, 5\); got 7 in row 2"):
            any_backend.call(name, inputs, {"ignore_index": -(2**63)})


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_rows_that_do_not_count(any_backend, dtype, reduction, random):
    """For any logits: no loss, and a gradient of zeros."""
    logits, labels = random.normal(size=(4, 33)), np.array([1, IGNORED, 3, IGNORED])
    wild = np.where((labels == IGNORED)[:, None], np.nan, logits)
    expected, got = (loss_and_gradient(any_backend, dtype, x, labels, reduction=reduction) for x in (logits, wild))
    for left, right in zip(got, expected, strict=True):
        assert_same_bits(left, right)
    assert not got[1][labels == IGNORED].any()


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("reduction", "expected"), [("mean", np.nan), ("sum", 0), ("none", [0, 0, 0])])
def test_no_row_counts(any_backend, dtype, label_smoothing, reduction, expected, random):
    """The mean of no rows is NaN, like PyTorch's; the gradient is zero."""
    logits, labels = random.normal(size=(3, 33)), np.full(3, IGNORED)
    options = {"reduction": reduction, "label_smoothing": label_smoothing}
    loss, gradient = loss_and_gradient(any_backend, dtype, logits, labels, **options)
    np.testing.assert_array_equal(loss, expected)
    assert not gradient.any()


@pytest.mark.parametrize("narrow", ["float32", "bfloat16"])
@pytest.mark.parametrize("classes", [65_536, 262_144, 50_257], ids=str)
def test_large_vocabularies(any_backend, narrow, classes, random):
    sample = call((3, classes), random, label_smoothing=0.1)
    inputs = any_backend.tensors(sample, narrow)
    check_forward(any_backend, SPECIFICATION, sample, inputs)
    check_backward(any_backend, SPECIFICATION, sample, inputs)


@pytest.mark.parametrize("wide", ["float32", "float64"])
@pytest.mark.parametrize("classes", [33, 40_000])
def test_smoothing_far_from_zero(any_backend, wide, classes, random):
    """A common offset of a row's logits has no effect, also across segments."""
    sample = call((3, classes), random, label_smoothing=0.1)
    far = {**sample.inputs, "logits": 2**20 + np.linspace(0, 3, classes) + sample.inputs["logits"]}
    check_forward(any_backend, SPECIFICATION, Sample(far, sample.options), any_backend.tensors(Sample(far), wide))


def test_many_rows(any_backend, random):
    """The sum over rows is within the error of a pairwise sum."""
    sample = call((300_000, 3), random, reduction="mean")
    check_forward(any_backend, SPECIFICATION, sample, any_backend.tensors(sample, "float32"))


def test_more_than_2_31_elements(torch_gpu):
    """Every row has the bits of the same row in a small tensor."""
    torch, cross_entropy = torch_gpu.torch, torch_gpu.functions.cross_entropy
    classes, period = 50_264, 64
    rows = 2**31 // classes // period * period + 2 * period
    small = torch.randn(period, classes, device="cuda", dtype=torch.bfloat16).requires_grad_()
    labels = torch.randint(classes, (period,), device="cuda")
    large = small.detach().repeat(rows // period, 1).requires_grad_()
    expected = cross_entropy(small, labels, reduction="none")
    got = cross_entropy(large, labels.repeat(rows // period), reduction="none")
    assert torch.equal(got, expected.repeat(rows // period))
    expected.sum().backward()
    got.sum().backward()
    assert torch.equal(large.grad[-period:], small.grad)


def test_rows_of_the_gradient(torch_backend, dtype, random):
    """On a GPU, 16-bit rows start at multiples of 16 bytes; compiled code has the same values."""
    torch, fo = torch_backend.torch, torch_backend.functions
    labels = torch_backend.tensor(random.integers(0, 1003, (2, 3)), "int64")
    logits = torch_backend.tensor(random.normal(size=(2, 3, 1003)), dtype)

    def upstream(logits):
        """The upstream gradient of a product before the loss."""
        twice = (logits * 2).detach().requires_grad_()
        return torch.autograd.grad(fo.cross_entropy(twice, labels, reduction="sum"), twice)[0]

    row = 1008 if torch_backend.device == "cuda" and dtype in ("float16", "bfloat16") else 1003
    assert upstream(logits).stride() == (3 * row, row, 1)
    assert_same_bits(
        torch_backend.to_numpy(upstream(logits).contiguous()),
        torch_backend.to_numpy(torch.compile(upstream, backend="aot_eager")(logits).contiguous()),
    )


def test_a_place_outside_of_the_classes(torch_backend):
    logits, labels = torch_backend.like(Like("float32", (2, 3))), torch_backend.like(Like("int64", (2,)))
    for first_class, classes, least in ((4, 6, 7), (4, 0, 7), (0, 2, 3)):
        message = f"classes must be at least {least}, first_class and the classes of the logits; got {classes}"
        with pytest.raises(RuntimeError, match=message):
            torch_backend.functions.ops.cross_entropy(logits, labels, first_class=first_class, classes=classes)
