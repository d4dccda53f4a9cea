"""Losses over a linear head: blocks of logits, gradients in the forward, invalid labels and weights, memory."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

from tests.helpers.specification import Sample


def check(
    backend,
    random,
    dtype,
    *,
    rows=2048,
    depth=24,
    classes=None,
    transpose=True,
    bias=True,
    softcap=0.0,
    smoothing=0.0,
    ignored=0,
):
    """`depth` products for each logit, and several blocks, against cross_entropy of all logits in float64."""
    torch, fo = backend.torch, backend.functions
    classes = classes or (17_000 if dtype == "float32" else 34_000)
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
    expected, counted = 0.0, (labels != -100).sum()
    for some_rows, some_labels in zip(wide[0].split(2048), labels.split(2048), strict=True):
        logits = some_rows @ (wide[1].t() if transpose else wide[1])
        if bias:
            logits = logits + wide[2]
        if softcap:
            logits = softcap * torch.tanh(logits / softcap)
        options = {"label_smoothing": smoothing, "reduction": "sum"}
        share = torch.nn.functional.cross_entropy(logits, some_labels, **options) / counted
        (share * upstream).backward()
        expected += share.item()
    # The loss is at least about 10 (20 with smoothing); each logit errs by a few roundings of a sum of `depth` terms.
    assert abs(loss.item() - expected) <= 2e-6 * max(1, depth / 24) * expected
    for ours, exact in zip(got, (each.grad for each in wide), strict=True):
        # dz, its unit gradient and the result are rounded to the dtype; the exponents, of up to 20, twice in float32.
        limit = 3 * torch.finfo(x.dtype).eps + 40 * torch.finfo(torch.float32).eps
        assert (ours.double() - exact).norm() <= limit * exact.norm()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_several_blocks(torch_backend, dtype, random):
    """On a CPU three chunks of rows, in float16 blocks of rows and of columns; the last ones are narrow."""
    rows = 2048 if dtype == "float16" else 1600
    check(torch_backend, random, dtype, rows=rows, transpose=dtype == "bfloat16", softcap=8.0)


@pytest.mark.parametrize("sizes", [
    ((520, 264), (4200, 2112), True),
    ((520, 130), (4200, 1040), True),
    ((520, 130), (4200, 1040), False),
    ((660, 136), (5600, 1400), False),
], ids=["in dW", "few features", "[in, classes]", "[in, classes], in dW"])  # fmt: skip
def test_dz_of_all_rows(torch_backend, sizes, random):
    """dz of all rows exists, of the later columns in the memory of dW, with a bias and ignored rows."""
    rows, depth = sizes[torch_backend.device != "cpu"]
    check(torch_backend, random, "bfloat16", rows=rows, depth=depth, classes=66_048, transpose=sizes[2], ignored=20)


@pytest.mark.parametrize("options", [
    {"dtype": "bfloat16", "rows": 16_000, "depth": 264},
    {"dtype": "bfloat16", "rows": 16_000, "depth": 264, "transpose": False, "softcap": 100.0},
    {"dtype": "bfloat16", "rows": 15_400, "depth": 27},
    {"dtype": "float32", "rows": 15_400},
], ids=["halves", "[in, classes]", "blocks of halves", "float32"])  # fmt: skip
def test_chunks_of_rows(torch_gpu, options, random):
    """Three chunks on a GPU. 264 features are a whole tile of the sums in halves and a part of one. The rows of 27
    elements are misaligned, and few rows are left for the last chunk."""
    check(torch_gpu, random, ignored=700, **options)


@pytest.mark.parametrize("sizes", [((520, 8), (7800, 8)), ((520, 264), (4200, 1400))], ids=["chunks", "parts"])
def test_gradients_in_the_forward_and_in_the_backward(torch_backend, sizes, random):
    """Chunks of rows have the same bits in both, whatever gradients are wanted. So has dz of all rows, with which dx
    and dbias have other sums, if dW is wanted. The classes are a multiple of 64 where a forward that keeps nothing
    would add up lse in another order."""
    torch, ops = torch_backend.torch, torch_backend.torch.ops.fusedops
    (rows, depth), classes = sizes[torch_backend.device != "cpu"], 66_000 if sizes[0][1] == 8 else 66_048
    x, weight, bias = (
        torch_backend.tensor(random.standard_normal(shape), "bfloat16")
        for shape in ((rows, depth), (classes, depth), (classes,))
    )
    labels = torch.as_tensor(random.integers(0, classes, rows), device=x.device)
    upstream = torch.tensor(0.7, device=x.device)
    class_weight = torch_backend.tensor(random.random(classes), "float32")
    inputs, options = (x, weight, labels, bias), (-100, 0.0, "mean", 0.0, True, 1e-3, 0, 0)

    def results(*kept):
        loss, lse, count, *unit = ops.linear_cross_entropy(*inputs, class_weight, *options, *kept)
        assert [each.numel() > 0 for each in unit] == list(kept)
        backward = ops.linear_cross_entropy_backward
        return loss, *backward(upstream, *inputs, lse, count, class_weight, *unit, *options, True, True, True)

    expected = results(False, False, False)
    for kept in ((True, True, True), *([] if depth > 8 else [(False, True, False)])):
        for got, right in zip(results(*kept), expected, strict=True):
            assert torch.equal(got, right)


def test_gradients_are_kept_for_inputs_that_a_tape_watches(tf_backend):
    tf, fo = tf_backend.tf, tf_backend.functions
    x, weight, labels = tf.ones((3, 4)), tf.Variable(tf.ones((5, 4))), tf.constant([0, 1, 2])

    def step(watched):
        with tf.GradientTape() as tape:
            tape.watch(watched)
            loss = fo.linear_cross_entropy(x, weight, labels)
        return tape.gradient(loss, weight)

    def kept(function, *arguments):
        graph = tf.function(function).get_concrete_function(*arguments).graph
        call = next(op for op in graph.get_operations() if op.type == "FusedopsLinearCrossEntropy")
        return [call.get_attr(f"keep_{name}") for name in ("dx", "dweight", "dbias")]

    assert kept(lambda: step([])) == [False, True, False]
    assert kept(lambda: step([x])) == [True, True, False]
    assert kept(lambda: fo.linear_cross_entropy(x, weight, labels)) == [False, False, False]


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


@pytest.mark.parametrize("op", ["linear_cross_entropy", "linear_log_prob"])
def test_a_label_that_is_no_class(any_backend, op, random):
    """An error on a CPU; NaN on a GPU in that row, its gradient, and the gradient of the weight."""
    sentence = f"fusedops.{op}: labels must be in [0, 5) or ignore_index, -100; got 5 in row 1"
    options = {"reduction": "none"} if op == "linear_cross_entropy" else {}
    check_refused(any_backend, op, head_of(random, labels=[0, 5, 1]), options, sentence, [False, True, False])


@pytest.mark.parametrize("op", ["cross_entropy", "linear_cross_entropy"])
def test_a_negative_weight_of_a_class(any_backend, op, random):
    """An error on a CPU; NaN on a GPU where the weight counts."""
    head = head_of(random, labels=[2, 0, 2])
    inputs = {"logits": head["x"], "labels": head["labels"]} if op == "cross_entropy" else head
    inputs["class_weight"] = np.array([1, 2, -0.5, 0, 1, 1, 1, 1][: 8 if op == "cross_entropy" else 5], np.float32)
    sentence = f"fusedops.{op}: class_weight must not be negative; got -0.5 for class 2"
    check_refused(any_backend, op, inputs, {"reduction": "none"}, sentence, [True, False, True])


def head_of(random, labels):
    x, weight = random.normal(size=(3, 8)), random.normal(size=(5, 8))
    return {"x": x, "weight": weight, "labels": np.array(labels), "bias": None}


def check_refused(backend, op, inputs, options, sentence, wrong_rows):
    tensors = backend.tensors(Sample(inputs), "float32")
    wanted = [name for name in ("x", "logits", "weight") if name in inputs]

    def results():
        outputs, gradients = backend.gradients(op, tensors, options, wanted)
        return [backend.to_numpy(value) for value in (outputs[0], *(gradients[name] for name in wanted))]

    if backend.device == "cpu":
        with pytest.raises(backend.errors, match=re.escape(sentence)):
            results()
        return
    losses, dx, *dweight = map(np.isnan, results())
    assert losses.tolist() == dx.all(1).tolist() == wrong_rows and all(each.all() for each in dweight)


def test_memory_is_below_that_of_the_logits(torch_gpu):
    """Besides the gradients and the lower halves of the weight's, memory is limited to half of the logits' size."""
    torch, fo = torch_gpu.torch, torch_gpu.functions
    rows, depth, classes = 16_384, 512, 131_072
    x = torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(classes, depth, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, classes, (rows,), device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    fo.linear_cross_entropy(x, weight, labels).backward()
    gradients = 2 * (x.numel() + 2 * weight.numel())
    assert torch.cuda.max_memory_allocated() - before - gradients < rows * classes


ROWS_OF_LOSSES = {
    "sum": lambda fo, x, weight, labels: [fo.linear_cross_entropy(x, weight, labels, reduction="sum")],
    "none": lambda fo, x, weight, labels: [fo.linear_cross_entropy(x, weight, labels, reduction="none")],
    "log_prob": lambda fo, x, weight, labels: fo.linear_log_prob(x, weight, labels, entropy=True),
    "kl_div": lambda fo, x, weight, labels: [
        fo.linear_kl_div(x, weight, x.detach().flip(1), weight.detach(), labels=labels, reduction="sum")
    ],
}


@pytest.mark.parametrize("call", ROWS_OF_LOSSES)
def test_more_than_2_31_logits(torch_gpu, call):
    """Rows that repeat have the results and the gradients of a call with few rows."""
    repeated_rows(torch_gpu, ROWS_OF_LOSSES[call], logits=2**31)


def repeated_rows(backend, call, logits):
    torch, period, classes, depth = backend.torch, 64, 100_003, 32
    copies = logits // classes // period + 2
    x, weight = (torch.randn(n, depth, device=backend.device, dtype=torch.bfloat16) for n in (period, classes))
    labels = torch.randint(classes, (period,), device=backend.device)
    labels[::7] = -100
    found = []
    for count in (1, copies):
        leaves = [x.repeat(count, 1).requires_grad_(), (weight / depth**0.5).requires_grad_()]
        outputs = call(backend.functions, *leaves, labels.repeat(count))
        dx, dweight = torch.autograd.grad(outputs, leaves, [torch.ones_like(y) for y in outputs])
        found.append((outputs, dx.view(count, period, depth).float(), dweight.float()))
    (small, dx_of_row, dweight_of_row), (large, dx, dweight) = found
    # A row's statistics err by a few roundings; dz, the gradients and their product with the upstream round to 16 bits.
    exact, rounded = 16 * torch.finfo(torch.float32).eps, 3 * torch.finfo(torch.bfloat16).eps
    for got, right in zip(large, small, strict=True):
        right = right.repeat(copies) if right.dim() else right * copies
        assert (got - right).abs().max() <= exact * right.abs().max()
    for got in dx.split(64):
        assert (got - dx_of_row).flatten(1).norm(dim=1).max() <= rounded * dx_of_row.norm()
    assert (dweight / copies - dweight_of_row).norm() <= rounded * dweight_of_row.norm()


@pytest.mark.parametrize("call", [("bfloat16", 0.3), ("float32", 0.0), ("float16", 1.0)], ids=str)
def test_divergence_of_several_chunks(torch_backend, call, random):
    """linear_kl_div over several chunks of rows and a narrow block of columns, against float64. In the backward the
    gradients have the same bits as in the forward."""
    torch, fo, (dtype, beta) = torch_backend.torch, torch_backend.functions, call
    rows, classes = 300 if torch_backend.device == "cpu" else 7800, 66_001
    shapes = (rows, 8), (classes, 8), (rows, 5), (classes, 5), (classes,)
    tensors = [torch_backend.tensor(random.standard_normal(shape), dtype) for shape in shapes]
    labels = torch.zeros(rows, dtype=torch.int64, device=tensors[0].device)
    labels[::7] = -100
    options = {"labels": labels, "beta": beta, "temperature": 2.0}
    loss, *got = _divergence(torch, fo.linear_kl_div, tensors, rows, options)
    wide = [x.double() for x in tensors]
    plain, *expected = 0.0, *(torch.zeros_like(wide[i]) for i in (0, 1, 4))
    for start in range(0, rows, 1300):
        part = slice(start, start + 1300)
        inputs = [wide[0][part], wide[1], wide[2][part], wide[3], wide[4]]
        given = {**options, "labels": labels[part], "reduction": "sum"}
        own, dx, *others = _divergence(torch, functools.partial(_plain_divergence, torch), inputs, rows, given)
        plain += own
        expected[0][part] = dx
        expected[1:] = [total + each for total, each in zip(expected[1:], others, strict=True)]
    counted = (labels != -100).sum()
    # Logits and logarithms of probabilities are below 20; in float32 each errs by a few roundings.
    limit = 100 * torch.finfo(torch.float32).eps
    assert abs(loss - plain / counted) <= limit * (plain / counted)
    for ours, exact in zip(got, expected, strict=True):
        # dz, its unit gradient and the result are rounded to the dtype.
        bound = (3 * torch.finfo(ours.dtype).eps + limit) * (exact / counted).norm()
        assert (ours.double() - exact / counted).norm() <= bound
    _, *late = _divergence(torch, fo.linear_kl_div, tensors, rows, options, keeps=False)
    assert all(map(torch.equal, got, late))


def _divergence(torch, function, tensors, rows, options, keeps=True):
    """The loss, and the gradients of x, weight and bias for the upstream gradient `rows`, in which float16 does not
    underflow. Without `keeps` the backward computes them."""
    x, weight, *target, bias = tensors
    leaves = [y.detach().requires_grad_() for y in (x, weight, bias)]
    if keeps or x.dtype == torch.float64:
        loss = function(leaves[0], leaves[1], *target, leaves[2], **options)
    else:
        arguments = (options["beta"], options["temperature"], -100, "mean", True, False, False, False)
        given = (leaves[0], leaves[1], *target, leaves[2], None, options["labels"])
        loss, *_ = torch.ops.fusedops.linear_kl_div(*given, *arguments)
    return loss.item(), *torch.autograd.grad(loss, leaves, torch.full_like(loss, float(rows)))


def _plain_divergence(torch, x, weight, target_x, target_weight, bias, labels, beta, temperature, reduction):
    log_p = ((x @ weight.T + bias) / temperature).log_softmax(-1)
    log_q = (target_x @ target_weight.T / temperature).log_softmax(-1)
    log_m = {0.0: log_p, 1.0: log_q}.get(beta, (beta * log_q.exp() + (1 - beta) * log_p.exp()).log())
    of_target, of_model = {0.0: (1, 0), 1.0: (0, 1)}.get(beta, (beta, 1 - beta))
    terms = of_target * log_q.exp() * (log_q - log_m) + of_model * log_p.exp() * (log_p - log_m)
    return terms.sum(-1)[labels != -100].sum()
