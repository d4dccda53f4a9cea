"""Run by torch/test_vocabulary.py, once per rank: losses whose classes are divided over the ranks."""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import fusedops.torch as fo
from tests.helpers.checks import check_backward, check_forward, tuples
from tests.helpers.frameworks import BACKENDS
from tests.helpers.numerics import DTYPES
from tests.helpers.ranks import destroy_process_group, init_process_group
from tests.specifications import cross_entropy, linear_cross_entropy, linear_log_prob, linear_log_prob_entropy

section, device, rank, world, store = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
torch.set_num_threads(1)
init_process_group(device, rank, world, store, seconds=60)
group: Any = dist.group.WORLD
mesh = dist.device_mesh.init_device_mesh(device, (world,))
HEAD = {"weight": 0, "bias": 0}
OF_CLASSES = {
    "cross_entropy": {"logits": -1},
    "linear_cross_entropy": HEAD,
    "linear_log_prob": HEAD,
    "linear_log_prob_entropy": HEAD,
}
# With more than two ranks: each reduction, with equal and with unequal shards, and empty shards.
FEW = (
    *(
        f"{reduction}-0.1{options}"
        for reduction in ("mean", "sum", "none")
        for options in ("", "-2.0-True", "-None-None")
    ),
    *("smooth", "1-classes", "no-classes", "parts-True"),
)


def dims_of(name: str, options: Any) -> dict[str, int]:
    """The dimensions of classes, by input."""
    dims = OF_CLASSES[name]
    return dims if options.get("transpose_weight", True) else {**dims, "weight": 1}


def placed(x: torch.Tensor, dim: int | None) -> DTensor:
    placement = Replicate() if dim is None else Shard(dim % x.dim())
    return DTensor.from_local(x, mesh, [Replicate()], run_check=False).redistribute(placements=[placement])


class Distributed(BACKENDS["torch"]):  # type: ignore[misc]
    """Computes the losses of whole tensors in parts: by the functions of one rank's tensors where the parts are equal
    and `of_tensors` is set, otherwise by DTensors."""

    of_tensors = False

    def call(self, name: str, inputs: Any, options: Any = None) -> Any:
        dims, given = dims_of(name, options or {}), {**inputs, **(options or {})}
        classes = {inputs[x].shape[dim] for x, dim in dims.items() if inputs.get(x) is not None}
        if self.of_tensors and all(n % world == 0 for n in classes):
            own = {x: given[x].tensor_split(world, dim)[rank] for x, dim in dims.items() if given.get(x) is not None}
            return tuples(SPECIFICATIONS[name].made_by(fo.distributed)(**given | own, group=group))
        tensors = {x: placed(y, dims.get(x)) for x, y in inputs.items() if isinstance(y, torch.Tensor)}
        results = tuples(SPECIFICATIONS[name].made_by(fo)(**given | tensors))
        return tuple(y.full_tensor() for y in results)

    def gradients(self, name: str, inputs: Any, options: Any, wanted: Any, upstream: Any = None) -> Any:
        outputs, found = super().gradients(name, inputs, options, wanted, upstream)
        if self.of_tensors:
            for x in dims_of(name, options):
                if x in found and inputs[x].shape[dims_of(name, options)[x]] % world == 0:
                    found[x] = found[x].contiguous()
                    dist.all_reduce(found[x])  # zeros but for the rank's part
        return outputs, found


class Parts:
    """A specification whose roundings include those of joining parts.

    With label smoothing a part's term is what remains of a number as large as its log-sum-exp. The gradient of x is
    rounded by each rank, and by each addition of two of them.
    """

    def roundings(self, *args: Any, **call: Any) -> Any:
        found = super().roundings(*args, **call)  # type: ignore[misc]
        return {name: count + 8 + 4 * world for name, count in found.items()}

    def storage_roundings(self, **call: Any) -> Any:
        found = super().storage_roundings(**call)  # type: ignore[misc]
        return {**found, "dx": found.get("dx", 0) + 2 * world}

    def magnitude(self, *args: Any, **call: Any) -> Any:
        found = super().magnitude(*args, **call)  # type: ignore[misc]
        if not call.get("label_smoothing"):
            return found
        logits = call["logits"] if "logits" in call else self.logits(**call)
        return found + np.abs(logits).max(initial=0) * (logits.size if call.get("reduction") == "sum" else 1)


class CrossEntropy(Parts, cross_entropy.CrossEntropy):
    pass


class Head(Parts):
    @staticmethod
    def logits(x: Any, weight: Any, bias: Any = None, softcap: float = 0.0, transpose_weight: bool = True, **_: Any):
        sums = linear_cross_entropy.argument(x, weight, bias, transpose_weight)
        return linear_cross_entropy.capped(sums, softcap)[0]


class LinearCrossEntropy(Head, linear_cross_entropy.LinearCrossEntropy):
    pass


class LinearLogProb(Head, linear_log_prob.LinearLogProb):
    pass


class LinearLogProbEntropy(Head, linear_log_prob_entropy.LinearLogProbEntropy):
    pass


SPECIFICATIONS: dict[str, Any] = {
    spec.name: spec for spec in (CrossEntropy(), LinearCrossEntropy(), LinearLogProb(), LinearLogProbEntropy())
}


def samples(spec: Any, random: np.random.Generator) -> Iterator[Any]:
    """Those of the specification, and all options with classes that the ranks can share equally."""
    yield from spec.more_samples(random)
    if isinstance(spec, LinearLogProb | LinearLogProbEntropy):
        for transpose in (True, False):
            options = {"softcap": 2.0, "temperature": 0.5, "transpose_weight": transpose}
            yield linear_log_prob.call((5, 3, 6), random, f"parts-{transpose}", classes=12, bias=True, **options)
        return
    is_linear = isinstance(spec, LinearCrossEntropy)
    make = linear_cross_entropy.call if is_linear else cross_entropy.call
    more = itertools.product((0.0, 2.0), (True, False)) if is_linear else ((None, None),)
    for (softcap, transpose), smoothing, reduction in itertools.product(more, (0.0, 0.1, 1.0), ("mean", "sum", "none")):
        options = {"label_smoothing": smoothing, "reduction": reduction}
        name = f"{reduction}-{smoothing}-{softcap}-{transpose}"
        if is_linear:
            options |= {"softcap": softcap, "transpose_weight": transpose}
            yield make((5, 3, 6), random, name, classes=12, bias=bool(softcap), **options)
        else:
            yield make((5, 3, 12), random, name, **options)


def check_accuracy(of_tensors: bool) -> None:
    backend = Distributed(device)
    backend.of_tensors = of_tensors
    dtypes = DTYPES if not of_tensors else ("float64", "bfloat16")
    for spec in SPECIFICATIONS.values():
        for dtype in dtypes if world == 2 else ("float64",):
            for sample in samples(spec, np.random.default_rng(0)):
                if world > 2 and str(sample) not in FEW:
                    continue
                inputs = backend.tensors(sample, dtype)
                check_forward(backend, spec, sample, inputs)
                check_backward(backend, spec, sample, inputs)


def tensors() -> None:
    """Shards that are plain tensors."""
    check_accuracy(of_tensors=True)


def dtensors() -> None:
    """The ordinary functions, with parts of any size: also none."""
    check_accuracy(of_tensors=False)


def infinities() -> None:
    """As without parts: logits that are infinite or NaN, in one part alone or in all of them."""
    values = [0.0, 1.0, -torch.inf, torch.inf, torch.nan]
    logits = torch.tensor(list(itertools.product(values, repeat=4)), dtype=torch.float64, device=device)
    logits = logits.repeat_interleave(world, 1)
    for label, smoothing in itertools.product(range(0, logits.shape[1], world), (0.0, 0.1)):
        labels = torch.full(logits.shape[:1], label, device=device)
        options = {"reduction": "none", "label_smoothing": smoothing}
        expected = fo.cross_entropy(logits, labels, **options)
        got = fo.cross_entropy(placed(logits, 1), placed(labels, None), **options).to_local()
        torch.testing.assert_close(got, expected, equal_nan=True)
    x, weight = (torch.zeros(n, 1, dtype=torch.float64, device=device) for n in (1, logits.shape[1]))
    for number, bias in enumerate(logits[::11]):  # the logits of one row
        label = torch.tensor([number % 4 * world], device=device)
        parts = weight.chunk(world)[rank], label, bias.chunk(world)[rank].contiguous()
        expected = fo.linear_log_prob(x, weight, label, bias, entropy=True)
        got = fo.distributed.linear_log_prob(x, *parts, group=group, entropy=True)
        torch.testing.assert_close(got, expected, equal_nan=True)


def language_model(seed: int = 0, dtype: torch.dtype = torch.float64, classes: int = 12) -> list[torch.Tensor]:
    random = torch.Generator(device).manual_seed(seed)
    x, weight, bias = (
        torch.randn(shape, dtype=dtype, device=device, generator=random)
        for shape in ((6, 4, 8), (classes, 8), (classes,))
    )
    labels = torch.randint(classes, (6, 4), device=device, generator=random)
    labels[1, 2] = -100
    return [x, weight, labels, bias]


def own(x: torch.Tensor) -> torch.Tensor:
    """The rank's part of a parameter."""
    return x.detach().tensor_split(world)[rank].requires_grad_()


def bits() -> None:
    """The same in each run and, of the loss and of the gradient of x, on each rank."""
    x, weight, labels, bias = language_model(dtype=torch.bfloat16)
    x.requires_grad_()

    def run() -> list[torch.Tensor]:
        weights = own(weight), own(bias)
        loss = fo.distributed.linear_cross_entropy(x, weights[0], labels, weights[1], group=group)
        return [loss.detach(), *torch.autograd.grad(loss, (x, *weights))]

    first, second = run(), run()
    assert all(map(torch.equal, first, second))
    for y in first[:2]:
        everywhere = [torch.empty_like(y) for _ in range(world)]
        dist.all_gather(everywhere, y)
        assert all(torch.equal(y, other) for other in everywhere)


def messages() -> None:
    """Four numbers for each row in the forward, the gradient of x in the backward, and no logits."""
    x, weight, labels, _ = language_model()
    distributed = [placed(y, dim).detach().requires_grad_() for y, dim in ((x, None), (weight, 0))]
    with CommDebugMode() as sent:
        loss = fo.linear_cross_entropy(*distributed, placed(labels, None))
    assert sent.get_total_counts() == 1
    with CommDebugMode() as sent:
        dx, dweight = torch.autograd.grad(loss, distributed)
    assert sent.get_total_counts() == 0
    assert dx.placements[0].is_partial() and dweight.placements == (Shard(0),)
    with CommDebugMode() as sent:
        fo.linear_log_prob(*distributed, placed(labels, None), entropy=True)
    assert sent.get_total_counts() == 1
    logits = placed(x @ weight.T, 2).detach().requires_grad_()
    with CommDebugMode() as sent:
        loss = fo.cross_entropy(logits, placed(labels, None))
        loss.backward()
    assert sent.get_total_counts() == 1
    assert logits.grad is not None and logits.grad.placements == (Shard(2),)


def differentiated_twice() -> None:
    x, weight, labels, bias = language_model()

    def second(function: Callable[..., Any], leaves: list[torch.Tensor]) -> Any:
        loss = sum(y.sum() for y in tuples(function(leaves[0], leaves[1], labels, leaves[2], softcap=2.0)))
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        return torch.autograd.grad(sum(y.square().sum() for y in first[1:]), leaves[1:])

    options = {"linear_log_prob": {"entropy": True}, "linear_cross_entropy": {"label_smoothing": 0.1}}
    for name, given in options.items():
        whole_function = functools.partial(getattr(fo, name), **given)
        expected = second(whole_function, [y.clone().requires_grad_() for y in (x, weight, bias)])
        function = functools.partial(getattr(fo.distributed, name), group=group, **given)
        got = second(function, [x.clone().requires_grad_(), own(weight), own(bias)])
        for y, whole in zip(got, expected, strict=True):
            torch.testing.assert_close(y, whole.tensor_split(world)[rank])
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        function(torch.autograd.forward_ad.make_dual(x, x), own(weight), labels)


def compiled() -> None:
    """The ordinary function is one graph; those of plain tensors are called as they are."""
    x, weight, labels, bias = language_model()
    leaves = [x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]

    def loss(x: Any, weight: Any, labels: Any, bias: Any, **group: Any) -> Any:
        function = fo.distributed.linear_cross_entropy if group else fo.linear_cross_entropy
        return function(x * 2, weight, labels, bias, label_smoothing=0.1, softcap=3.0, **group)

    expected = loss(x, weight, labels, bias)
    gradients = torch.autograd.grad(expected, leaves)
    distributed = [placed(y, dim).detach().requires_grad_() for y, dim in zip(leaves, (None, 0, 0), strict=True)]
    of_dtensors = torch.compile(loss, backend="aot_eager", fullgraph=True)
    got = of_dtensors(*distributed[:2], placed(labels, None), distributed[2])
    torch.testing.assert_close(got.full_tensor(), expected)
    for y, whole in zip(torch.autograd.grad(got, distributed), gradients, strict=True):
        torch.testing.assert_close(y.full_tensor(), whole)
    parts = own(weight), own(bias)
    got = torch.compile(loss, backend="aot_eager")(x, parts[0], labels, parts[1], group=group)
    torch.testing.assert_close(got, expected)
    dx, *others = torch.autograd.grad(got, (x, *parts))
    torch.testing.assert_close(dx, gradients[0])
    for y, whole in zip(others, gradients[1:], strict=True):
        torch.testing.assert_close(y, whole.tensor_split(world)[rank])


def layers() -> None:
    x, weight, labels, bias = language_model(dtype=torch.float32)
    layer = fo.nn.LinearCrossEntropyLoss(8, 12, bias=True, device=device, label_smoothing=0.1, z_loss=0.1)
    layer.load_state_dict({"linear.weight": weight, "linear.bias": bias})
    expected = layer(x, labels)
    logits = torch.nn.functional.linear(x, weight, bias)
    of_logits = fo.nn.CrossEntropyLoss(label_smoothing=0.1, z_loss=0.1)
    for name, parameter in [*layer.linear.named_parameters()]:
        setattr(layer.linear, name, torch.nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)])))
    sharded, targets = placed(logits, 2), placed(labels, None)
    assert layer.why_not(placed(x, None), targets) is None and of_logits.why_not(sharded.movedim(2, 1), targets) is None
    with CommDebugMode() as sent:
        of_classes = of_logits(sharded.movedim(2, 1), targets)
    assert sent.get_total_counts() == 1
    got = layer(placed(x, None), targets)  # not in the mode, whose hooks of modules leave the head to torch
    for y in (got, of_classes):
        torch.testing.assert_close(y.full_tensor(), expected)


def two_dimensions() -> None:
    """Rows over pairs of ranks, and classes within each."""
    both = dist.device_mesh.init_device_mesh(device, (world // 2, 2))
    x, weight, labels, bias = (y.requires_grad_(y.is_floating_point()) for y in language_model())
    for reduction in ("mean", "sum", "none"):
        options = {"label_smoothing": 0.1, "softcap": 2.0, "reduction": reduction}
        expected = fo.linear_cross_entropy(x, weight, labels, bias, **options)
        dy = torch.rand_like(expected)
        dist.broadcast(dy, 0)
        places = [(Shard(0), Replicate()), (Replicate(), Shard(0)), (Shard(0), Replicate()), (Replicate(), Shard(0))]
        inputs = [
            distribute_tensor(y.detach(), both, p).requires_grad_(y.is_floating_point())
            for y, p in zip((x, weight, labels, bias), places, strict=True)
        ]
        got = fo.linear_cross_entropy(*inputs, **options)
        torch.testing.assert_close(got.full_tensor(), expected)
        leaves = [y for y in inputs if y.requires_grad]
        gradients = torch.autograd.grad(got, leaves, distribute_tensor(dy, both, [Replicate(), Replicate()]))
        for y, whole in zip(gradients, torch.autograd.grad(expected, (x, weight, bias), dy), strict=True):
            torch.testing.assert_close(y.full_tensor(), whole)


def errors() -> None:
    """On every rank, and behind each the group still works."""
    x, weight, labels, bias = language_model()
    part = own(weight)
    given = {"x": x, "weight": part, "labels": labels, "group": group}
    prefix = r"fusedops\.distributed\.linear_cross_entropy: "
    shapes = rf"got float64 \[{12 // world}, 8\] in process 0 and float64 \[{12 // world - 1}, 8\] in process 1"
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"weight": part[: len(part) - rank]}, RuntimeError, f"{prefix}weight must be alike in all .* group; {shapes}"),
        ({"labels": labels[: 6 - rank]}, RuntimeError, f"{prefix}labels must be alike"),
        ({"bias": own(bias) if rank else None}, RuntimeError, f"{prefix}bias must be alike"),
        ({"softcap": float(rank)}, RuntimeError, f"{prefix}softcap must be alike .*; got 0.0 in process 0"),
        ({"group": None}, ValueError, f"{prefix}group must be a torch.*; got NoneType"),
        ({"group": dist.GroupMember.NON_GROUP_MEMBER}, ValueError, f"{prefix}.*; got a group without this process"),
        ({"x": [1.0]}, TypeError, f"{prefix}x must be a plain tensor; got list"),
        ({"x": [1.0] if rank else x}, RuntimeError, f"{prefix}x must be alike .* and list in process 1"),
        ({"labels": labels.float()}, RuntimeError, "labels must be int32 or int64; got float32"),
        ({"label_smoothing": 1.5}, RuntimeError, r"label_smoothing must be in \[0, 1\]; got 1.5"),
    ]
    outside = labels.clone()
    outside[0, 3] = 12
    if device == "cpu":
        message = r"labels must be in \[0, 12\) or ignore_index, -100; got 12 in row 3"
        cases.append(({"labels": outside}, RuntimeError, message))
    else:  # a GPU cannot raise
        losses = fo.distributed.linear_cross_entropy(**given | {"labels": outside}, reduction="none")
        assert losses.isnan().flatten().nonzero().tolist() == [[3]]
        other = {"x": x.cpu(), "weight": part.detach().cpu(), "labels": labels.cpu()}
        cases.append((other, ValueError, f"{prefix}group must be of a backend for cpu; got cuda:nccl"))
    for bad, kind, message in cases:
        with pytest.raises(kind, match=message):
            fo.distributed.linear_cross_entropy(**given | bad)
    got = fo.distributed.linear_cross_entropy(**given)
    torch.testing.assert_close(got, fo.linear_cross_entropy(x, weight, labels))
    with pytest.raises(RuntimeError, match=r"fusedops\.distributed\.linear_log_prob: temperature must be alike"):
        fo.distributed.linear_log_prob(**given, temperature=1.0 + rank)


for name in section.split(","):
    globals()[name]()
    print(name, flush=True)
destroy_process_group()
