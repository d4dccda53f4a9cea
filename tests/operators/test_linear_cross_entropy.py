"""linear_cross_entropy: blocks of logits, invalid labels, memory."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.helpers.specification import Sample


def check(backend, random, dtype, *, rows=2048, transpose=True, bias=True, softcap=0.0, smoothing=0.0, ignored=0):
    """24 products for each logit, and several blocks, against cross_entropy of all logits in float64."""
    torch, fo = backend.torch, backend.functions
    depth, classes = 24, 17_000 if dtype == "float32" else 34_000
    x, weight, added = (
        backend.tensor(random.standard_normal(shape), dtype).requires_grad_()
        for shape in ((rows, depth), (classes, depth) if transpose else (depth, classes), (classes,))
    )
    inputs = (x, weight, added) if bias else (x, weight)
    labels = torch.as_tensor(random.integers(0, classes, rows), device=x.device)
    labels[:ignored] = -100
    loss = fo.linear_cross_entropy(
        x, weight, labels, *inputs[2:], softcap=softcap, label_smoothing=smoothing, transpose_weight=transpose
    )
    upstream = torch.full_like(loss, 64.0 * rows)  # 64 for each row, so that dz does not underflow in float16
    got = torch.autograd.grad(loss, inputs, upstream)

    wide = [each.detach().double().requires_grad_() for each in inputs]
    logits = wide[0] @ (wide[1].t() if transpose else wide[1])
    if bias:
        logits = logits + wide[2]
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    # The loss is about 10 (20 with smoothing); each logit errs by a few roundings of a sum of 24 terms.
    assert abs(loss.item() - expected.item()) <= 2e-6 * expected.item()
    for ours, exact in zip(got, torch.autograd.grad(expected, wide, upstream.double()), strict=True):
        # dz and the result are rounded to the dtype; the exponents, of up to 20, are rounded twice in float32.
        limit = 3 * torch.finfo(x.dtype).eps + 40 * torch.finfo(torch.float32).eps
        assert (ours.double() - exact).norm() <= limit * exact.norm()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_several_blocks(torch_backend, dtype, random):
    """Blocks of rows and of columns, the last of which are narrow."""
    check(torch_backend, random, dtype, transpose=dtype == "bfloat16", softcap=8.0)


@pytest.mark.parametrize("options", [
    {"dtype": "bfloat16", "rows": 2050, "bias": False},
    {"dtype": "float16", "softcap": 30.0},
    {"dtype": "float16", "softcap": 100.0},  # beyond the fused kernel's limit
    {"dtype": "bfloat16", "transpose": False, "smoothing": 0.1},
    {"dtype": "float16", "rows": 2050, "softcap": 8.0, "smoothing": 0.1, "ignored": 700},
], ids=["plain", "soft cap", "large soft cap", "smoothing", "all"])  # fmt: skip
def test_the_fused_kernel(torch_gpu, options, random):
    """Every branch of the fused kernel's epilogue."""
    check(torch_gpu, random, **options)


def test_a_label_that_is_no_class(any_backend, random):
    """An error on a CPU; NaN on a GPU in that row, its gradient, and the gradient of the weight."""
    labels, options = np.array([0, 5, 1]), {"reduction": "none"}
    inputs = {"x": random.normal(size=(3, 8)), "weight": random.normal(size=(5, 8)), "labels": labels, "bias": None}
    tensors = any_backend.tensors(Sample(inputs), "float32")

    def results():
        outputs, gradients = any_backend.gradients("linear_cross_entropy", tensors, options, ("x", "weight"))
        return (any_backend.to_numpy(value) for value in (outputs[0], gradients["x"], gradients["weight"]))

    if any_backend.device == "cpu":
        sentence = "fusedops.linear_cross_entropy: labels must be in [0, 5) or ignore_index, -100; got 5 in row 1"
        with pytest.raises(any_backend.errors, match=re.escape(sentence)):
            results()
        return
    losses, dx, dweight = map(np.isnan, results())
    assert losses.tolist() == dx.all(1).tolist() == [False, True, False] and dweight.all()


def test_memory_is_below_that_of_the_logits(torch_gpu):
    """Besides the gradients, memory is limited to half of the logits' size."""
    torch, fo = torch_gpu.torch, torch_gpu.functions
    rows, depth, classes = 4096, 512, 131_072
    x = torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(classes, depth, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, classes, (rows,), device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    fo.linear_cross_entropy(x, weight, labels).backward()
    gradients = 2 * (x.numel() + weight.numel())
    assert torch.cuda.max_memory_allocated() - before - gradients < rows * classes
