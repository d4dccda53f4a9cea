"""Run by torch/test_dtensor.py, once per rank: calls and models on DTensors, compared with those in one process.

Without a file for the ranks' store, torch simulates all ranks in this process."""

import contextlib
import copy
import functools
import itertools
import math
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import fusedops.torch as fo
import fusedops.torch.optim as fused_optim
from fusedops.torch.conversion import reported
from tests.helpers.axes import MAX_ELEMENTS, assert_close, others, recorded, run, single, ways
from tests.helpers.calls import function_of
from tests.helpers.frameworks import backend as backend_of
from tests.helpers.hugging_face import FAMILIES, Family
from tests.helpers.ranks import destroy_process_group, init_process_group
from tests.helpers.torch_functions import every_operator
from tests.specifications import SPECIFICATIONS

section, device, rank, world, store = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
torch.set_num_threads(1)
is_simulated = not store  # the mesh has two dimensions then
HAS_PLANS = sys.version_info >= (3, 11) and find_spec("transformers") is not None  # as in torch/test_dtensor.py
if is_simulated:
    from torch.distributed._local_tensor import LocalTensorMode, local_tensor_mode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
else:
    init_process_group(device, rank, world, store, seconds=120)
mesh = dist.device_mesh.init_device_mesh(device, (world // 2, 2) if is_simulated else (world,))
backend = backend_of("torch", device)


def placed(x: torch.Tensor, *placements: Any) -> DTensor:
    """x as a DTensor, replicated over further dimensions of the mesh. A partial sum has equal terms: two or four, so
    that they are exact."""
    placements = (*placements, *(Replicate() for _ in range(mesh.ndim - len(placements))))
    partial = [i for i, p in enumerate(placements) if isinstance(p, Partial)]
    x = x.detach()
    x = local_tensor_mode().rank_map(lambda _: x.clone()) if is_simulated else x
    y = distribute_tensor(x, mesh, [Replicate() if i in partial else p for i, p in enumerate(placements)])
    if not partial:
        return y
    term = y.to_local() / math.prod(mesh.size(i) for i in partial)
    return DTensor.from_local(term, mesh, placements, run_check=False, shape=y.shape, stride=y.stride())


def full(y: DTensor) -> torch.Tensor:
    """The whole tensor; of 8 bits as bytes, since gloo does not support float8."""
    local = y.to_local()
    shards = local.view(torch.uint8) if local.element_size() == 1 else local
    whole_sizes = {"shape": y.shape, "stride": y.stride()}
    return DTensor.from_local(shards, mesh, y.placements, run_check=False, **whole_sizes).full_tensor()


def of_share(share: Any) -> Any:
    return {"part": Shard(share.dim), "all": Replicate(), "term": Partial(), "mean": Replicate()}[share.kind]


def operators() -> None:
    """Every registered operator in every way in which its axes divide it. The results are the shares that the axes say,
    and nothing is sent but for means and for parts that are joined."""
    from fusedops.torch.distributed.joins import JOINS
    from fusedops.torch.library import SIGNATURES, overload

    count = 0
    calls = [call for spec in SPECIFICATIONS for call in recorded(backend, spec, np.random.default_rng(0))]
    for call in (*calls, *others(backend, np.random.default_rng(0))):
        signature = SIGNATURES[call.name]
        if any(isinstance(x, list) for x in call.arguments[: signature.inputs]):
            continue
        results, updated = run(torch, call)
        for division in ways(call, results):
            if not division.allows(world):
                continue
            inputs = [
                None if x is None else placed(single(x), of_share(share))
                for x, share in zip(call.arguments, division.inputs, strict=False)
            ]
            arguments = (*inputs, *call.arguments[signature.inputs :])
            with CommDebugMode() as messages:
                got = overload(call.name)(*arguments)
            label = f"{call} along {division.axis}"
            has_mean = any(share.kind == "mean" for share in division.outputs)
            is_joined = division.place is not None and call.name in JOINS
            assert has_mean or messages.get_total_counts() == int(is_joined), label
            got = () if got is None else got if isinstance(got, tuple) else (got,)
            for y, expected, share in zip(got, results, division.outputs, strict=True):
                assert has_mean or y.placements == (of_share(share),), (label, y.placements)
                assert_close(torch, full(y), expected, label)
            mutated = [x for x, declared in zip(inputs, signature.declaration.inputs, strict=True) if declared.updated]
            for y, expected in zip(mutated, updated, strict=True):
                assert_close(torch, y.full_tensor(), expected, label)
            count += 1
    assert count > 100


def placements_of(inputs: tuple[torch.Tensor, ...]) -> Iterator[list[Any]]:
    """One input at a time sharded along each dimension, or a partial sum; then all along the same."""
    everywhere = [Replicate() for _ in inputs]
    yield everywhere
    for i, x in enumerate(inputs):
        for dim in range(x.dim()):
            yield [*everywhere[:i], Shard(dim), *everywhere[i + 1 :]]
        if x.is_floating_point():
            yield [*everywhere[:i], Partial(), *everywhere[i + 1 :]]
    for dim in (0, 1, -1):
        if all(x.dim() > abs(dim) for x in inputs):
            yield [Shard(dim % x.dim()) for x in inputs]


def functions() -> None:
    """Every public function with any placement of its inputs, forward and backward."""
    from fusedops.torch.library import TABLE

    count = 0
    for spec in SPECIFICATIONS:
        if is_simulated and any(re.search(r"@\w+/", axes.tensors) for axes in TABLE[spec.operator].axes):
            continue  # the simulation has no numbers that differ between ranks
        random = np.random.default_rng(1)
        shapes = (4, 6), (3, 5)  # the latter in shards of unequal sizes
        samples = [*(spec.sample(shape, random) for shape in shapes), *itertools.islice(spec.more_samples(random), 2)]
        samples = samples[1:2] if is_simulated else samples  # the simulation of a mesh is slow
        for sample in samples:
            if sum(np.size(x) for x in sample.inputs.values()) > MAX_ELEMENTS or not sample.tensors:
                continue
            if is_simulated and "seed" in (*sample.inputs, *sample.options):
                continue  # nor seeds
            given = backend.tensors(sample, "float64")
            names = sample.tensors
            tensors = tuple(given[name] for name in names)
            wanted = [name in spec.differentiable(sample) for name in names]
            function = function_of(backend, spec, sample, given, names)
            expected, upstream = with_gradients(function, tensors, wanted)
            every = [*placements_of(tensors)]
            pairs = [*zip(every, [*every[1:], every[0]], strict=True)]
            for pair in pairs[::2] if is_simulated else pairs:  # each placement in one of the two dimensions
                with LocalTensorMode(world) if is_simulated else contextlib.nullcontext():
                    distributed = tuple(placed(x, *ps[: mesh.ndim]) for x, *ps in zip(tensors, *pair, strict=True))
                    got, _ = with_gradients(function, distributed, wanted, upstream)
                    results = [y.full_tensor() for y in got]
                    results = [y.reconcile() if hasattr(y, "reconcile") else y for y in results]
                for y, whole in zip(results, expected, strict=True):
                    assert_close(torch, y, whole, f"{spec} {sample} {pair}")
                count += 1
    assert count > 100


def with_gradients(function: Callable[..., Any], tensors: Any, wanted: list[bool], upstream: Any = None) -> Any:
    inputs = [x.detach().requires_grad_(want) for x, want in zip(tensors, wanted, strict=True)]
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    if upstream is None:
        upstream = [torch.rand(y.shape, dtype=y.dtype, device=device, generator=seeded(0)) for y in outputs]
    dys = [placed(dy, Replicate()) if isinstance(y, DTensor) else dy for y, dy in zip(outputs, upstream, strict=True)]
    leaves = [x for x in inputs if x.requires_grad]
    return (*outputs, *torch.autograd.grad(outputs, leaves, dys)) if leaves else outputs, upstream


class Block(torch.nn.Module):
    """A layer of a transformer, whose heads are as many as each rank has."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.norm = fo.nn.RMSNorm(WIDTH)
        self.next_norm = fo.nn.AddLayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (fo.nn.Linear(WIDTH, WIDTH, bias) for _ in range(4))
        self.gate, self.up, self.down = (
            fo.nn.Linear(n, k, bias) for n, k in 2 * ((WIDTH, HIDDEN),) + ((HIDDEN, WIDTH),)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        q, k, v = (linear(h).unflatten(-1, (-1, SIZE)) for linear in (self.q, self.k, self.v))
        mixed = self.o(fo.attention(q, k, v, causal=True).flatten(-2))
        h, x = self.next_norm(mixed, x)
        return x + self.down(fo.swiglu(self.gate(h), self.up(h)))


class Model(torch.nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(CLASSES, WIDTH)
        self.blocks = torch.nn.ModuleList([Block(bias), Block(bias)])
        self.norm, self.head = fo.nn.RMSNorm(WIDTH), fo.nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return fo.cross_entropy(self.head(self.norm(x)), labels)

    checkpointed = False


def tensor_parallel(model: Model, mesh: Any, keeps_dtensors: bool) -> Model:
    """Linear layers in parts. `keeps_dtensors`: attention and activations are computed on DTensors, else on shards."""
    column, row = ColwiseParallel(use_local_output=not keeps_dtensors), RowwiseParallel()
    plan = {name: column for name in ("q", "k", "v", "gate", "up")} | {name: row for name in ("o", "down")}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model


def sequence_parallel(model: Model, mesh: Any) -> Model:
    """Norms and residuals on parts of the sequences, linear layers on parts of their weights."""
    column = ColwiseParallel(input_layouts=Shard(1), use_local_output=False)
    row = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
    plan = {name: column for name in ("q", "k", "v", "gate", "up")} | {name: row for name in ("o", "down")}
    for block in model.blocks:
        parallelize_module(block, mesh, {"norm": SequenceParallel(), "next_norm": Everywhere(), **plan})
    outer = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return parallelize_module(model, mesh, outer)


class Everywhere(ParallelStyle):
    """Parameters that every rank has; their gradients are sums over the ranks."""

    def _apply(self, module: torch.nn.Module, device_mesh: Any) -> torch.nn.Module:
        for name, parameter in [*module.named_parameters(recurse=False)]:
            whole = distribute_tensor(parameter, device_mesh, [Replicate()])
            module.register_parameter(name, torch.nn.Parameter(whole))
        return module


def whole(x: torch.Tensor) -> torch.Tensor:
    if not isinstance(x, DTensor):
        return x
    first, *others = x.placements
    if others or not isinstance(first, _StridedShard):
        return x.full_tensor()
    # PyTorch 2.11 does not gather strided shards without another one: packed weights have them under a tp_plan.
    own = x.to_local().contiguous()
    shards = [torch.empty_like(own) for _ in range(x.device_mesh.size())]
    dist.all_gather(shards, own, group=x.device_mesh.get_group())
    pieces = zip(*(shard.chunk(first.split_factor, first.dim) for shard in shards), strict=True)
    return torch.cat([part for parts in pieces for part in parts], first.dim)


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return fused_optim.AdamW(model.parameters(), 0.01, max_grad_norm=1.0)


def steps(model: torch.nn.Module, batches: list[Any], optimizer: torch.optim.Optimizer | None = None) -> list[Any]:
    """The loss and all gradients of each step, and the parameters behind the last."""
    optimizer = optimizer or adamw(model)
    history: list[Any] = []
    for tokens, labels in batches:
        optimizer.zero_grad()
        output = model(tokens, labels=labels)
        loss = getattr(output, "loss", output)
        loss.backward()
        history += [whole(loss.detach()), *(whole(p.grad) for p in model.parameters())]
        optimizer.step()
    return [*history, *(whole(p.detach()) for p in model.parameters())]


def check(got: list[torch.Tensor], expected: list[torch.Tensor], label: str) -> None:
    """Half of the digits of the largest number are beyond doubt; gradients that are zero but for rounding have none."""
    largest = max(float(reference.abs().max()) for reference in expected)
    for y, reference in zip(got, expected, strict=True):
        limit = torch.finfo(reference.dtype).eps ** 0.5 * largest
        torch.testing.assert_close(y, reference, rtol=0, atol=limit, msg=lambda text: f"{label}: {text}")


def models() -> None:
    """Training under tensor and sequence parallelism is that of one process."""
    for bias in (False, True):
        torch.manual_seed(0)
        model = Model(bias).to(device, torch.float64)
        expected = steps(copy.deepcopy(model), batches)
        ways: dict[str, Callable[[Model], Any]] = {
            "tp": lambda m: tensor_parallel(m, mesh, keeps_dtensors=False),
            "tp of dtensors": lambda m: tensor_parallel(m, mesh, keeps_dtensors=True),
            "sp": lambda m: sequence_parallel(m, mesh),
        }
        for name, parallel in ways.items():
            with fused_only():
                check(steps(parallel(copy.deepcopy(model)), batches), expected, name)
            if bias:
                compiled = parallel(copy.deepcopy(model))
                for block in compiled.blocks:
                    block.compile(backend="aot_eager")
                check(steps(compiled, batches), expected, f"{name}, compiled")
                checkpointed = parallel(copy.deepcopy(model))
                checkpointed.checkpointed = True
                check(steps(checkpointed, batches), expected, f"{name}, checkpointed")


@contextlib.contextmanager
def fused_only() -> Iterator[None]:
    """No layer of ours leaves anything to torch's code meanwhile."""
    from fusedops.torch.nn.layer import FusedLayer

    def refused(layer: Any, original: Any, *inputs: Any) -> Any:
        raise AssertionError(f"{type(layer).__name__}: {layer.why_not(*inputs)}")

    otherwise, FusedLayer.otherwise = FusedLayer.otherwise, refused  # type: ignore[method-assign]
    try:
        yield
    finally:
        FusedLayer.otherwise = otherwise  # type: ignore[method-assign]


def two_dimensions() -> None:
    """FSDP2 over pairs of ranks, and tensor parallelism within each."""
    both = dist.device_mesh.init_device_mesh(device, (world // 2, 2), mesh_dim_names=("data", "model"))
    torch.manual_seed(0)
    model = Model(bias=True).to(device, torch.float64)
    expected = steps(copy.deepcopy(model), batches)
    for name, parallel in {
        "fsdp and tp": lambda m: tensor_parallel(m, both["model"], keeps_dtensors=True),
        "fsdp and sp": lambda m: sequence_parallel(m, both["model"]),
    }.items():
        sharded = parallel(copy.deepcopy(model))
        for block in sharded.blocks:
            fully_shard(block, mesh=both["data"])
        fully_shard(sharded, mesh=both["data"])
        check(steps(sharded, batches), expected, name)


def checkpoints() -> None:
    """Training goes on from a checkpoint that another number of ranks has written, by torch.distributed.checkpoint."""
    torch.manual_seed(0)
    start = Model(bias=True).to(device, torch.float64)

    def parallel(model: Model, mesh: Any, is_saved: bool) -> Model:
        return tensor_parallel(model, mesh, keeps_dtensors=True) if mesh else model

    check_resumed(start, parallel, adamw, ((2, 1), (1, 2)) if world == 2 else ((4, 2),), check)


def transformers_checkpoints() -> None:
    """Those of families' models: converted behind the plan when they are saved, and before it when they are loaded."""
    for name, model, way in parallel_ways():
        if way in LOADED or (name, way) == ("qwen3_moe", by_plan):
            continue  # torch cannot save the packed weights of experts, whose shards are strided

        def parallel(model: Any, mesh: Any, is_saved: bool, way: Any = way) -> Any:
            return applied(way, model, mesh, not is_saved) if mesh else converted(model)

        check_resumed(model, parallel, momentum, ((2, 1), (1, 2)), lambda *results: check_in_part(*results[:2]))


def check_resumed(start: Any, parallel: Any, optimizer_of: Any, counts: Any, check: Any) -> None:
    """`counts`: pairs of numbers of ranks. `parallel` distributes a model over a mesh, or leaves it on one rank."""
    plain = parallel(copy.deepcopy(start), None, True)
    expected = steps(plain, batches, optimizer_of(plain))
    per_step = 1 + len([*start.parameters()])
    for before, after in counts:
        folder = pathlib.Path(store).parent / f"checkpoint{next(numbers)}"
        first = parallel(copy.deepcopy(start), mesh_of(before), True)
        optimizer = optimizer_of(first)
        steps(first, batches[:2], optimizer)
        dcp.save(dict(zip(("model", "optimizer"), get_state_dict(first, optimizer), strict=True)), checkpoint_id=folder)

        other = copy.deepcopy(start)
        for parameter in other.parameters():
            torch.nn.init.zeros_(parameter)
        second = parallel(other, mesh_of(after), False)
        optimizer = optimizer_of(second)
        state = dict(zip(("model", "optimizer"), get_state_dict(second, optimizer), strict=True))
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(second, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        check(steps(second, batches[2:], optimizer), expected[2 * per_step :], f"from {before} to {after}")


def mesh_of(count: int) -> Any:
    """A mesh of so many ranks, in each group of them; None for a single rank."""
    if count == 1:
        return None
    return dist.device_mesh.init_device_mesh(device, (world // count, count), mesh_dim_names=("data", "model"))["model"]


def momentum(model: torch.nn.Module) -> torch.optim.Optimizer:
    return fused_optim.SGD(model.parameters(), 0.1, momentum=0.9)


def autocast() -> None:
    """The dtypes of one process and, with rows in shards, its bits."""
    x, w = (torch.randn(shape, device=device, generator=seeded(2)) for shape in ((4, 6), (5, 6)))
    q = torch.randn(4, 3, 2, 8, device=device, generator=seeded(3))
    with torch.autocast(device, torch.bfloat16):
        for function, tensors, placements, has_bits in (
            (fo.add, (x.bfloat16(), x), (Shard(1), Shard(1)), True),
            (fo.rms_norm, (x.bfloat16(), w[0]), (Shard(0), Replicate()), True),
            (fo.softmax, (x,), (Shard(0),), True),
            (fo.linear, (x, w), (Shard(0), Replicate()), False),
            (fo.attention, (q, q, q), (Shard(2),) * 3, False),
        ):
            expected = function(*tensors)
            got = function(*map(placed, tensors, placements))
            assert got.placements == placements[:1], function
            limits = {"rtol": 0, "atol": 0} if has_bits else {}
            torch.testing.assert_close(got.full_tensor(), expected, **limits)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


class Recorder(TorchDispatchMode):
    """Lists the operators of ours that are called, and the collectives. It adds no hooks, as CommDebugMode does."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[str] = set()
        self.messages: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # DTensor calls the operators of shards
        if func.namespace == "fusedops":
            self.operators.add(func._schema.name.removeprefix("fusedops::"))
        if func.namespace == "_c10d_functional" and func._opname.startswith("all_"):
            self.messages.append(func._opname)
        return func(*args, **(kwargs or {}))


def called(model: Any, tokens: torch.Tensor) -> tuple[set[str], list[torch.Tensor]]:
    """The operators of ours that a model's forward calls; logits, the loss and all gradients of five steps."""
    recorder, without_gradients = Recorder(), Recorder()
    optimizer = fused_optim.SGD(model.parameters(), 0.1)  # before FSDP2 gathers parameters for a forward
    with torch.no_grad(), without_gradients:
        history: list[torch.Tensor] = [whole(model(tokens).logits)]
    for _ in range(5):
        optimizer.zero_grad()
        with recorder:
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        history += [whole(loss.detach()), *(whole(p.grad) for p in model.parameters() if p.grad is not None)]
        optimizer.step()
    return recorder.operators | {f"{name} without gradients" for name in without_gradients.operators}, history


EAGER_EXPERTS = {"experts_implementation": "eager"}  # torch's grouped product has no float64


def in_parts(model: Any, mesh: Any, **config: Any) -> Any:
    """As transformers loads it, by the plan of the model's class."""
    from transformers.distributed import DistributedConfig

    folder = pathlib.Path(store).parent / "model"
    if rank == 0:
        model.save_pretrained(folder)
    dist.barrier()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    options = {"distributed_config": DistributedConfig(**config or {"tp_plan": "auto"}), **EAGER_EXPERTS}
    parallel = type(model).from_pretrained(folder, dtype=torch.float64, **options)
    return parallel.train(model.training)


def by_experts(model: Any, mesh: Any) -> Any:
    """Whole experts in every process, which tokens are sent to. Without gradients, all processes have all tokens."""
    return in_parts(model, mesh, tp_size=world, ep_size=world)


def by_sentinels(model: Any, mesh: Any) -> Any:
    """Whole experts in every process, and all tokens: an index stands for all experts of other processes."""
    return in_parts(model, mesh, tp_size=world, ep_size=world, ep_implementation="all_reduce")


def by_plan(model: Any, mesh: Any) -> Any:
    """By the plan that transformers has for the model's class, which need not be one of transformers. A weight that the
    head and the embedding share stays whole."""
    from transformers.distributed import DistributedConfig
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    plan, *_ = model._resolve_parallel_plans(DistributedConfig(tp_size=mesh.size()))
    if model.config.tie_word_embeddings:
        plan = {name: style for name, style in plan.items() if name.startswith("model.layers.")}
    return apply_tensor_parallelism(model, mesh, plan)


COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "query", "key", "value", "intermediate.dense")
ROWS = ("o_proj", "down_proj", "output.dense")
HEADS = {"qwen3_moe": 2, "gemma3_text": 1}  # the dimension of the heads in what the norms of q and k get


def layers_of(model: Any) -> Any:
    return model.bert.encoder.layer if hasattr(model, "bert") else model.model.layers


def by_names(model: Any, mesh: Any) -> Any:
    """Tensor parallelism with plain tensors between the layers, by a plan of one's own. A head whose weight is not the
    embedding's has sharded classes."""
    for layer in layers_of(model):
        columns, rows = named(layer, COLUMNS), named(layer, ROWS)
        plan = dict.fromkeys(columns, ColwiseParallel()) | dict.fromkeys(rows, RowwiseParallel())
        parallelize_module(layer, mesh, plan | norms_of_heads(model, layer))
    if model.config.tie_word_embeddings:
        return model
    return parallelize_module(model, mesh, {"lm_head": ColwiseParallel(output_layouts=Replicate())})


def by_positions(model: Any, mesh: Any) -> Any:
    """Sequence parallelism, by a plan of one's own: norms and residuals on parts of the sequences. An embedding and a
    head that share a weight stay whole, and so does a mixture of experts."""
    part: dict[str, Any] = {"output_layouts": Shard(1), "use_local_output": False}
    column, row = ColwiseParallel(input_layouts=Shard(1)), RowwiseParallel(**part)
    divided = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1), use_local_output=False)
    joined = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True)
    for layer in layers_of(model):
        plan: dict[str, Any] = dict.fromkeys(named(layer, COLUMNS), column) | dict.fromkeys(named(layer, ROWS), row)
        plan |= {name: SequenceParallel() for name in named(layer, ("norm", "LayerNorm"))}
        plan |= norms_of_heads(model, layer)
        parallelize_module(layer, mesh, plan)
        if hasattr(layer, "mlp") and hasattr(layer.mlp, "experts"):
            parallelize_module(layer.mlp, mesh, joined)
            parallelize_module(layer.mlp, mesh, divided)
    if hasattr(model, "bert"):
        return parallelize_module(model, mesh, {"bert.embeddings": divided, "cls": joined})
    outer: dict[str, Any] = {"model.embed_tokens": divided, "lm_head": joined}
    if not model.config.tie_word_embeddings:
        outer["model.embed_tokens"] = RowwiseParallel(input_layouts=Replicate(), **part)
        outer["lm_head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    return parallelize_module(model, mesh, outer | {"model.norm": SequenceParallel()})


def named(layer: Any, endings: tuple[str, ...]) -> list[str]:
    return [name for name, module in layer.named_modules() if name.endswith(endings)]


def norms_of_heads(model: Any, layer: Any) -> dict[str, Any]:
    """The norms of q and k have the heads of their process."""
    return {
        name: SequenceParallel(sequence_dim=HEADS[model.config.model_type], use_local_output=True)
        for name in named(layer, ("q_norm", "k_norm"))
    }


def converted(model: Any) -> Any:
    return fo.convert(model, verbose=False, fuse_loss=True)


def check_messages(model: Any, tokens: torch.Tensor, is_embedding_sharded: bool) -> None:
    """One all-reduce of a result behind each attention and MLP, and one of the gradient of each's input; besides, the
    embedding, the statistics of the loss, and the gradient of its input."""
    expected = 2 * len(model.model.layers) + 1
    with Recorder() as forward:
        loss = model(tokens, labels=tokens).loss
    with Recorder() as backward:
        loss.backward()
    assert len(forward.messages) == expected + is_embedding_sharded, forward.messages
    assert len(backward.messages) == expected, backward.messages


def parallel_ways() -> Iterator[tuple[str, Any, Callable[..., Any]]]:
    """A model of each family, with each plan for it."""
    ways: dict[str, tuple[Callable[..., Any], ...]] = {
        "llama": (in_parts, by_plan, by_names, by_positions),
        "qwen3": (by_plan,),
        "qwen3_moe": (by_plan, by_names, by_positions, by_experts, by_sentinels),
        "gemma3": (in_parts, by_plan, by_positions),
        "bert": (by_names, by_positions),
    }
    for name, plans in ways.items():
        torch.manual_seed(0)
        model = FAMILIES.get(name, Family(name)).build("float64", device, **EAGER_EXPERTS)
        model.train(name == "llama")  # others have dropout
        for way in plans:
            yield name, model, way


LOADED = (in_parts, by_experts, by_sentinels)  # transformers loads models of its own classes


def transformers() -> None:
    """Converted models, before and behind their plans, keep their fused operators, but for modules with hooks."""
    for name, model, way in parallel_ways():
        for is_converted_first in (False,) if way in LOADED else (False, True):
            parallel = applied(way, copy.deepcopy(model), mesh, is_converted_first)
            tokens = check_family(model, parallel, way)
            if name == "llama" and way is not by_positions:
                check_messages(parallel, tokens, is_embedding_sharded=way is not by_names)


def transformers_fsdp() -> None:
    """Converted models under FSDP2 over pairs of ranks, and tensor or sequence parallelism within each."""
    both = dist.device_mesh.init_device_mesh(device, (world // 2, 2), mesh_dim_names=("data", "model"))

    for _, model, way in parallel_ways():
        if way not in LOADED:
            sharded = applied(way, copy.deepcopy(model), both["model"], is_converted_first=way is by_positions)
            for layer in layers_of(sharded):
                fully_shard(layer, mesh=both["data"])
            check_family(model, fully_shard(sharded, mesh=both["data"]), way)


def replicas() -> None:
    """Dropout of plain tensors inside a plan: processes with equal seeds have equal copies, as with torch's dropout."""
    model = FAMILIES["bert"].build("float64", device).train()
    tokens = torch.randint(90, (2, 8), generator=torch.Generator().manual_seed(0)).to(device)
    for is_converted_first in (False, True):
        parallel = applied(by_names, copy.deepcopy(model), mesh, is_converted_first)
        losses = []
        for seed in (5, 5, 6):
            torch.manual_seed(seed)
            parallel.zero_grad()
            loss = parallel(tokens, labels=tokens).loss
            loss.backward()
            losses.append(loss.detach())
            copies = [loss.detach(), *(p.grad for p in parallel.parameters() if not isinstance(p, DTensor))]
            for y in copies:
                everywhere = [torch.empty_like(y) for _ in range(world)]
                dist.all_gather(everywhere, y)
                assert all(torch.equal(y, other) for other in everywhere), (is_converted_first, y.shape)
        assert losses[0] == losses[1] != losses[2]


def check_family(model: Any, parallel: Any, way: Callable[..., Any]) -> torch.Tensor:
    """Compares with the converted model in one process; returns the tokens."""
    tokens = torch.randint(90, (2, 8), generator=torch.Generator().manual_seed(0)).to(device)
    usual, expected = called(converted(copy.deepcopy(model)), tokens)
    names, got = called(parallel, tokens)
    assert names == {step for name in usual for step in in_steps(name, CALLED.get(way, {}))}, (way, names, usual)
    check_in_part(got, expected)
    return tokens


def applied(way: Callable[..., Any], model: Any, mesh: Any, is_converted_first: bool) -> Any:
    if is_converted_first:
        return way(converted(model), mesh)
    return converted(way(model, mesh))


# The fused operators whose modules have hooks by these plans, and the operators of those modules.
ROTATED = {"rms_norm_rope": ("rms_norm", "rope")}
CALLED = {
    by_names: ROTATED,
    by_positions: {"add_rms_norm": ("rms_norm",), "add_layer_norm": ("layer_norm",), **ROTATED},
}


def in_steps(operator: str, called: Mapping[str, tuple[str, ...]]) -> list[str]:
    name, *mode = operator.split(" ", 1)
    return [" ".join([step, *mode]) for step in called.get(name, (name,))]


def check_in_part(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """Losses, angles and some norms are float32. Gradients that are zero but for rounding have that of float64."""
    rounding = torch.finfo(torch.float64).eps * max(float(reference.abs().max()) for reference in expected)
    for y, reference in zip(got, expected, strict=True):
        limit = torch.finfo(torch.float32).eps ** 0.5 * float(reference.abs().max()) + rounding
        torch.testing.assert_close(y, reference, rtol=0, atol=limit)


def compiled() -> None:
    """All functions in one graph, forward and backward; with symbols for sizes, the norms and a loss."""
    function, tensors = every_operator(backend, np.random.default_rng(2))
    check_compiled(function, tensors, dynamic=False)

    def block(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        y, s = fo.add_rms_norm(x, fo.scale(x, 0.5), weight)
        return fo.cross_entropy(fo.swiglu(y, s), labels)

    def dropping(x: torch.Tensor, q: torch.Tensor, seed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h, _ = fo.add_rms_norm(x, fo.dropout(x, 0.3, seed=seed), dropout=0.3, seed=seed)
        return h, fo.attention(q, q, q, dropout=0.3, seed=seed)

    x, q = (torch.randn(n, device=device, generator=seeded(7)).requires_grad_() for n in ((4, 6), (4, 3, 2, 8)))
    for dynamic in (False, True):
        check_compiled(dropping, (x, q, torch.tensor([3, 4], device=device)), dynamic)

    for rows in (4, 6):
        x, weight = (torch.randn(n, 8, device=device, generator=seeded(rows)).requires_grad_() for n in (rows, 1))
        labels = torch.arange(rows, device=device)
        check_compiled(block, (x, weight.detach()[0].clone().requires_grad_(), labels), dynamic=True)


def check_compiled(function: Callable[..., Any], tensors: tuple[torch.Tensor, ...], dynamic: bool) -> None:
    wanted = [x.requires_grad for x in tensors]
    expected, upstream = with_gradients(function, tensors, wanted)
    distributed = tuple(placed(x, Shard(0) if x.dim() > 1 else Replicate()) for x in tensors)
    traced = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    got, _ = with_gradients(traced, distributed, wanted, upstream)
    for y, reference in zip(got, expected, strict=True):
        assert_close(torch, y.full_tensor(), reference, "compiled")


def absent_inputs() -> None:
    """Calls whose tensors are alike, in other places: DTensor's cache of decisions must tell them apart. An attribute
    that has not its default comes behind all inputs, so that the calls have as many arguments."""
    x, w = (torch.randn(n, dtype=torch.float64, device=device, generator=seeded(5)) for n in ((4, 6), (6,)))
    for _ in range(2):
        for given in ((w, None), (None, w), (w, w), (None, None)):
            for of_x, of_w in ((Shard(1), Shard(0)), (Shard(0), Replicate())):
                parameters = [None if y is None else placed(y, of_w) for y in given]
                got = fo.layer_norm(placed(x, of_x), *parameters, eps=0.1)
                assert_close(torch, got.full_tensor(), fo.layer_norm(x, *given, eps=0.1), f"{given}")


def losses() -> None:
    """The layer's loss of shards is the kernel's, also within torch's loss_parallel."""
    x, labels = (
        torch.randn(6, 8, device=device, generator=seeded(4)),
        torch.tensor([1, 7, -100, 3, 0, 2], device=device),
    )
    layer = fo.nn.CrossEntropyLoss()
    expected = torch.nn.functional.cross_entropy(x, labels)
    for dim, of_labels in ((0, Shard(0)), (1, Replicate())):
        for context in (contextlib.nullcontext, loss_parallel):
            with fused_only(), context():
                got = layer(placed(x, Shard(dim)), placed(labels, of_labels))
            torch.testing.assert_close(got.full_tensor(), expected)


def without_weight() -> None:
    """Losses whose labels are ignored or have a class of weight 0: all of them, or those of one shard. The results have
    the numbers, NaN, infinities and zeros of one process."""
    grid = mesh if world == 2 else dist.device_mesh.init_device_mesh(device, (world // 2, 2))
    class_weight = torch.arange(8.0, device=device)
    x, weight = (torch.randn(8, 8, dtype=torch.float64, device=device, generator=seeded(n)) for n in (4, 5))
    some = ([0, 0, 0, -100, 1, 7, 3, 2], [0] * 8, [-100] * 4 + [0] * 4, [0] * 4 + [-100] * 4, [-100] * 8)
    unsharded, first, last = [Replicate()] * 2, [Shard(0)] * 2, [Shard(1)] * 2
    calls = [  # with the placements of inputs and of labels: rows are sharded, or classes, or both
        ("cross_entropy", (x,), [first], first),
        ("cross_entropy", (x,), [last], unsharded),
        ("cross_entropy", (x,), [[Shard(0), Shard(1)]], [Shard(0), Replicate()]),
        ("linear_cross_entropy", (x, weight), [first, unsharded], first),
        ("linear_cross_entropy", (x, weight), [unsharded, first], unsharded),
        (
            "linear_cross_entropy",
            (x, weight),
            [[Shard(0), Replicate()], [Replicate(), Shard(0)]],
            [Shard(0), Replicate()],
        ),
    ]
    for labels, options in itertools.product(some, ({}, {"z_loss": 0.1}, {"label_smoothing": 0.1})):
        for (name, inputs, where, of_labels), needed in itertools.product(calls, (False, True)):
            given = [*inputs, torch.tensor(labels, device=device), class_weight]
            placements = (*where, of_labels, unsharded)
            sharded = [distribute_tensor(y, grid, p[: grid.ndim]) for y, p in zip(given, placements, strict=True)]
            results = []
            for *leaves, targets, of_classes in (given, sharded):
                leaves = [y.detach().requires_grad_(needed) for y in leaves]
                loss = getattr(fo, name)(*leaves, targets, class_weight=of_classes, **options)
                results.append([loss, *(torch.autograd.grad(loss, leaves) if needed else ())])
            for exact, got in zip(*results, strict=True):
                assert_close(torch, got.full_tensor(), exact, f"{name} {labels} {options} {where} {needed}")


def dropout() -> None:
    """All ranks drop the same, whatever their own generators draw, and they drop it in place: they send nothing."""
    grid = mesh if world == 2 else dist.device_mesh.init_device_mesh(device, (world // 2, 2))
    seed = torch.tensor([3, 4], device=device)
    everywhere = distribute_tensor(seed, grid, [Replicate()] * grid.ndim)
    cases: list[tuple[str, tuple[int, ...], dict[str, Any], list[Any]]] = [
        ("dropout", (6, 10), {"rate": 0.5}, [[Shard(0)], [Shard(1)], [Shard(0), Shard(1)], [Shard(1), Shard(1)]]),
        ("dropout", (5, 3), {"rate": 0.5}, [[Shard(0)], [Shard(1)]]),
        ("dropout", (1, 4, 6), {"rate": 0.5}, [[Shard(1), Shard(2)]]),
        ("dropout_add", (3, 4, 6), {"rate": 0.5}, [[Shard(2)], [Shard(0), Shard(2)]]),
        ("add_rms_norm", (3, 4, 6), {"dropout": 0.5}, [[Shard(0)], [Shard(1)], [Shard(0), Shard(1)]]),
        ("add_layer_norm", (3, 5, 6), {"dropout": 0.5}, [[Shard(0)], [Shard(1)]]),
        ("attention", (2, 5, 4, 8), {"dropout": 0.5}, [[Shard(0)], [Shard(2)], [Shard(0), Shard(2)]]),
        ("attention", (2, 4, 5, 8), {"dropout": 0.5, "seq_dim": -2}, [[Shard(1)], [Shard(1), Shard(0)]]),
    ]
    for name, shape, options, ways_to_place in cases:
        count = {"dropout": 1, "attention": 3}.get(name, 2)
        tensors = [torch.randn(shape, dtype=torch.float64, device=device, generator=seeded(i)) for i in range(count)]
        function = functools.partial(getattr(fo, name), **options)
        wanted = [True] * len(tensors)
        expected, upstream = with_gradients(functools.partial(function, seed=seed), tensors, wanted)
        for placements in ways_to_place:
            placements = (placements + [Replicate()] * grid.ndim)[: grid.ndim]
            leaves = [distribute_tensor(x, grid, placements).requires_grad_() for x in tensors]
            dys = [distribute_tensor(dy, grid, placements) for dy in upstream]
            with CommDebugMode() as messages:
                y = function(*leaves, seed=everywhere)
                y = y if isinstance(y, tuple) else (y,)
                got = [*y, *torch.autograd.grad(y, leaves, dys)]
            assert messages.get_total_counts() == 0, (name, placements, messages.get_comm_counts())
            for z, reference in zip(got, expected, strict=True):
                assert torch.equal(z.full_tensor(), reference), (name, placements)
    x = torch.ones(2, 4, 6, device=device)
    y = fo.dropout(distribute_tensor(x, grid, [Shard(1), Shard(2)][-grid.ndim :]), 0.5, seed=everywhere)
    assert torch.equal(y.full_tensor(), fo.dropout(x, 0.5, seed=seed)), "parts that no three numbers describe"
    terms = DTensor.from_local(seed, grid, [Replicate(), Partial("max")][-grid.ndim :], run_check=False)
    for other in (terms, distribute_tensor(seed, grid, [Shard(0), Replicate()][: grid.ndim])):
        y = fo.dropout(distribute_tensor(x, grid, [Replicate(), Shard(1)][-grid.ndim :]), 0.5, seed=other)
        assert torch.equal(y.full_tensor(), fo.dropout(x, 0.5, seed=seed)), other.placements
    of_part = torch.tensor([3, 4, 12, 0, 0], device=device)
    y = fo.dropout(placed(x, Shard(1)), 0.5, seed=placed(of_part, Replicate()))
    assert torch.equal(y.full_tensor(), fo.dropout(x, 0.5, seed=of_part)), "a part of a part"

    x = torch.ones(8, 6, dtype=torch.float64, device=device)
    for placement in (Replicate(), Shard(0), Shard(1)):
        torch.manual_seed(rank)
        drawn = fo.dropout(placed(x, placement), 0.5).full_tensor()
        agreed = [torch.empty_like(drawn) for _ in range(world)]
        dist.all_gather(agreed, drawn)
        assert 0 < int((drawn == 0).sum()) < drawn.numel() and all(torch.equal(drawn, y) for y in agreed)
        fixed = fo.dropout(placed(x, placement), 0.5, seed=(3, 4)).full_tensor()
        assert torch.equal(fixed, fo.dropout(x, 0.5, seed=(3, 4)))
        seeded_alike = []
        for y in (x, placed(x, placement)):
            torch.manual_seed(5)
            seeded_alike.append(fo.dropout(y, 0.5))
        assert torch.equal(seeded_alike[0], seeded_alike[1].full_tensor())


def plans() -> None:
    """Layers of a parallel plan are read between its hooks, eager and compiled. One with a further hook is called."""
    torch.manual_seed(0)
    x = torch.randn(4, 8, dtype=torch.float64, device=device).requires_grad_()
    labels = torch.tensor([1, 11, -100, 3], device=device)
    columns, rows = ColwiseParallel(output_layouts=Replicate()), RowwiseParallel(input_layouts=Replicate())
    dense = fo.convert(torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.GELU()), verbose=False)
    gated, loss = fo.nn.GatedLinear(8, 12, bias=True), fo.nn.LinearCrossEntropyLoss(8, 12, bias=True)
    cases: list[tuple[torch.nn.Module, dict[str, Any], tuple[torch.Tensor, ...]]] = [
        (gated, {"gate_proj": columns, "up_proj": columns}, ()),
        (loss, {"linear": columns}, (labels,)),
        (dense, {"0": columns}, ()),
        (dense, {"0": rows}, ()),
    ]
    if HAS_PLANS:
        gathered = "colwise_gather_output"
        cases += [
            (gated, {"gate_proj": gathered, "up_proj": gathered}, ()),
            (loss, {"linear": gathered}, (labels,)),
            (dense, {"0": gathered}, ()),
        ]
    for module, plan, targets in cases:
        module.to(device, torch.float64)
        with Recorder() as usual:
            expected = module(x, *targets)
        gradients = torch.autograd.grad(expected.sum(), (x, *module.parameters()))
        parallel = parallelized(copy.deepcopy(module), plan)
        with Recorder() as found, fused_only():
            got = parallel(x, *targets)
        assert found.operators == usual.operators, (module, found.operators)
        with Recorder() as found, fused_only(), torch.no_grad():
            torch.testing.assert_close(parallel(x, *targets), expected)
        assert found.operators == usual.operators, (module, found.operators)
        compiled = torch.compile(parallel, backend="aot_eager", fullgraph=True)(x, *targets)
        for y in (got, compiled):
            torch.testing.assert_close(y, expected)
            found_gradients = torch.autograd.grad(y.sum(), (x, *parallel.parameters()))
            for dx, reference in zip(found_gradients, gradients, strict=True):
                torch.testing.assert_close(whole(dx), reference)
        calls: list[Any] = []
        parallel.get_submodule(next(iter(plan))).register_forward_hook(lambda *_, calls=calls: calls.append(1))
        torch.testing.assert_close(parallel(x, *targets), expected)
        assert calls == [1]


def parallelized(module: torch.nn.Module, plan: dict[str, Any]) -> torch.nn.Module:
    """A module whose plan has torch's styles, or the names of transformers'."""
    if not all(isinstance(style, str) for style in plan.values()):
        return parallelize_module(module, mesh, plan)
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    parameters = {f"{name}.{part}": style for name, style in plan.items() for part in ("weight", "bias")}
    return apply_tensor_parallelism(module, mesh, parameters | plan)


def report() -> None:
    """The report of `convert` and the result of `explain` say which parameters are sharded."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.RMSNorm(4))
    assert "sharded" not in str(reported(copy.deepcopy(model)))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    model = parallelize_module(model.to(device), mesh, plan)
    over = f"over {world} processes"
    line = f"3 of 5 parameters are sharded: 2 Shard(dim=0) {over}, 1 Shard(dim=1) {over}"
    explanation = fo.explain(model, torch.ones(2, 4, device=device))
    assert explanation.notes == (line,) and str(explanation).endswith(f"\n{line}"), explanation
    text = str(reported(model))
    assert f"  {line}" in text, text


def heads() -> None:
    """Attention whose heads the ranks do not divide is redistributed."""
    for count, of_keys in ((3, 3), (6, 3), (4, 1)):
        q, k, v = (
            torch.randn(2, 4, n, 8, dtype=torch.float64, device=device, generator=seeded(n))
            for n in (count, of_keys, of_keys)
        )
        expected, upstream = with_gradients(fo.attention, (q, k, v), [True] * 3)
        got, _ = with_gradients(fo.attention, tuple(placed(x, Shard(2)) for x in (q, k, v)), [True] * 3, upstream)
        for y, reference in zip(got, expected, strict=True):
            assert_close(torch, y.full_tensor(), reference, f"{count} heads, {of_keys} of keys")


def errors() -> None:
    """On every rank, without a hang."""
    x, weight = torch.ones(4, 6, device=device), torch.ones(6, device=device)
    with raises(TypeError, r"fusedops\.rms_norm: weight must be a DTensor beside x; got Tensor: pass torch\.distr"):
        fo.rms_norm(placed(x, Shard(0)), weight)
    with raises(RuntimeError, r"fusedops\.rms_norm: weight must have shape \[6\], the last dimension of x; got \[4\]"):
        fo.rms_norm(placed(x, Shard(0)), placed(weight[:4], Replicate()))
    total = placed(torch.zeros(4, 4, device=device), Shard(0))
    with raises(RuntimeError, r"fusedops\.accumulate_matmul: total must be sharded as the result of the other inputs"):
        fo.accumulate_matmul(placed(torch.zeros(4, 4, device=device), Partial("max")), total, total)


def raises(kind: type[Exception], match: str) -> Any:
    return pytest.raises(kind, match=match)


WIDTH, HIDDEN, CLASSES, SIZE, BATCH, TIME = 16, 24, 12, 4, 2, 8
numbers = itertools.count()  # of checkpoints
generator = torch.Generator().manual_seed(1)
batches = [
    tuple(torch.randint(CLASSES, (BATCH, TIME), generator=generator).to(device) for _ in range(2)) for _ in range(5)
]
for name in section.split(","):
    globals()[name]()
    print(name, flush=True)
(dist.destroy_process_group if is_simulated else destroy_process_group)()
