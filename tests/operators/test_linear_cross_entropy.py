"""What is particular to linear_cross_entropy: blocks of logits, labels that are no class, memory."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.helpers.specification import Sample


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_several_blocks(torch_backend, dtype, random):
    """Blocks of rows and of columns, the last of which are narrow: as cross_entropy of all logits, in float64."""
    torch, fo = torch_backend.torch, torch_backend.functions
    rows, depth, classes, transpose = 2048, 24, *((34_000, True) if dtype == "bfloat16" else (17_000, False))
    x, weight, bias = (
        torch_backend.tensor(random.standard_normal(shape), dtype).requires_grad_()
        for shape in ((rows, depth), (classes, depth) if transpose else (depth, classes), (classes,))
    )
    labels = torch.as_tensor(random.integers(0, classes, rows), device=x.device)
    loss = fo.linear_cross_entropy(x, weight, labels, bias, softcap=8.0, transpose_weight=transpose)
    got = torch.autograd.grad(loss, (x, weight, bias))

    wide = [each.detach().double().requires_grad_() for each in (x, weight, bias)]
    logits = wide[0] @ (wide[1].t() if transpose else wide[1]) + wide[2]
    expected = torch.nn.functional.cross_entropy(8 * torch.tanh(logits / 8), labels)
    # The loss is about 10; each logit errs by a few roundings of a sum of 24 terms.
    assert abs(loss.item() - expected.item()) <= 2e-5
    for ours, exact in zip(got, torch.autograd.grad(expected, wide), strict=True):
        # dz and the result are rounded to the dtype; the exponents, of up to 20, are rounded twice in float32.
        limit = 3 * torch.finfo(x.dtype).eps + 40 * torch.finfo(torch.float32).eps
        assert (ours.double() - exact).norm() <= limit * exact.norm()


def test_a_label_that_is_no_class(any_backend, random):
    """On the CPU an error; on a GPU NaN: for that row, its gradient, and the gradient of the weight."""
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


def test_the_logits_do_not_exist(torch_gpu):
    """Beside the gradients there is less memory than half of the logits take."""
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
