"""Run by torch/test_distribution.py, once per rank: a small transformer under DDP and FSDP2, each rank with half of the
batch, compared with the whole batch in one process.

All bits are the same: the mean of two gradients is rounded once in either case."""

import copy
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import fusedops.torch as fo
import fusedops.torch.optim
from tests.helpers.ranks import destroy_process_group, init_process_group

BATCH, TIME, WIDTH, HEADS, HIDDEN, CLASSES = 2, 6, 32, 2, 48, 16
SIZE = WIDTH // HEADS  # of a head
STEPS = 3
RATE = 0.125  # a power of two: a step rounds once


def weights(rows: int, columns: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(rows, columns) * rows**-0.5)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.Parameter(torch.ones(WIDTH))
        self.next_norm = torch.nn.Parameter(torch.ones(WIDTH))
        self.next_bias = torch.nn.Parameter(torch.zeros(WIDTH))
        self.qkv, self.out = weights(WIDTH, 3 * WIDTH), weights(WIDTH, WIDTH)
        self.up, self.down = weights(WIDTH, 2 * HIDDEN), weights(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        packed = fo.matmul(fo.rms_norm(x, self.norm), self.qkv).view(BATCH, TIME, 3, HEADS, SIZE)
        q, k, v = packed.permute(2, 0, 3, 1, 4).unbind()
        q, k = (fo.rope(heads, cos, sin, seq_dim=-2) for heads in (q, k))
        seen = fo.softmax(fo.matmul(q, k, transpose_b=True), scale=SIZE**-0.5, causal=True)
        mixed = fo.matmul(seen, v).transpose(1, 2).reshape(BATCH, TIME, WIDTH)
        x, residual = fo.add_layer_norm(fo.matmul(mixed, self.out), x, self.next_norm, self.next_bias)
        return fo.add(residual, fo.matmul(fo.swiglu(fo.matmul(x, self.up)), self.down))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.norm, self.head = torch.nn.Parameter(torch.ones(WIDTH)), weights(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(TIME, device=x.device), 10.0 ** -torch.arange(SIZE // 2, device=x.device))
        for block in self.blocks:
            x = block(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        return fo.cross_entropy(fo.matmul(fo.rms_norm(x, self.norm), self.head), labels)


def in_one_process(model: Model, batches: list, narrow: torch.dtype | None) -> list:
    """The losses of both halves, the gradients and the parameters of each step."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    history = []
    for halves in batches:
        losses, gradients = [], []
        for x, labels in halves:
            parameters = dict(model.named_parameters())
            if narrow:
                x, parameters = x.to(narrow), {name: p.to(narrow) for name, p in parameters.items()}
            loss = torch.func.functional_call(model, parameters, (x, labels))
            losses.append(loss.detach())
            gradients.append(torch.autograd.grad(loss, tuple(model.parameters())))
        for parameter, one, other in zip(model.parameters(), *gradients, strict=True):
            parameter.grad = one / 2 + other / 2
        optimizer.step()
        history.append((losses, [(p.grad.clone(), p.detach().clone()) for p in model.parameters()]))
    return history


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def distributed(model: torch.nn.Module, batches: list, rank: int, expected: list) -> None:
    optimizer = fusedops.torch.optim.SGD(model.parameters(), RATE)
    for halves, (losses, parameters) in zip(batches, expected, strict=True):
        optimizer.zero_grad()
        loss = model(*halves[rank])
        loss.backward()
        optimizer.step()
        same(loss, losses[rank])
        for parameter, (gradient, value) in zip(model.parameters(), parameters, strict=True):
            same(whole(parameter.grad), gradient)
            same(whole(parameter.detach()), value)


def clipped_adamw(model: torch.nn.Module, batches: list, rank: int, history: list) -> None:
    """FSDP2's shards in AdamW, clipped by the norm of all ranks' gradients."""
    whole_model = copy.deepcopy(model)
    reference = fusedops.torch.optim.AdamW(whole_model.parameters(), 0.01, max_grad_norm=0.1)
    for p, (gradient, _) in zip(whole_model.parameters(), history[0][1], strict=True):
        p.grad = gradient
    reference.step()
    shards = sharded(model, MixedPrecisionPolicy())
    optimizer = fusedops.torch.optim.AdamW(shards.parameters(), 0.01, max_grad_norm=0.1)
    shards(*batches[0][rank]).backward()
    optimizer.step()
    for p, expected in zip(shards.parameters(), whole_model.parameters(), strict=True):
        torch.testing.assert_close(whole(p.detach()), expected.detach(), rtol=1e-5, atol=1e-6)


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got.detach(), expected, rtol=0, atol=0)


def sharded(model: Model, policy: MixedPrecisionPolicy) -> torch.nn.Module:
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def compiled(model: torch.nn.Module) -> Callable[..., torch.Tensor]:
    model.compile(backend="aot_eager")
    return model


device, rank, world, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
init_process_group(device, rank, world, store, seconds=120)
mesh = dist.device_mesh.init_device_mesh(device, (world,))
torch.manual_seed(0)
model = Model().to(device)
batches = [
    [
        (torch.randn(BATCH, TIME, WIDTH).to(device), torch.randint(CLASSES, (BATCH, TIME)).to(device))
        for _ in range(dist.get_world_size())
    ]
    for _ in range(STEPS)
]
float32, bfloat16 = (in_one_process(copy.deepcopy(model), batches, dtype) for dtype in (None, torch.bfloat16))
mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for name, wrap, expected in (
    ("ddp", DistributedDataParallel, float32),
    ("ddp-compiled", lambda model: compiled(DistributedDataParallel(model)), float32),
    ("fsdp", lambda model: sharded(model, MixedPrecisionPolicy()), float32),
    ("fsdp-bfloat16", lambda model: sharded(model, mixed), bfloat16),
    ("fsdp-compiled", lambda model: compiled(sharded(model, mixed)), bfloat16),
):
    distributed(wrap(copy.deepcopy(model)), batches, rank, expected)
    print(name, flush=True)
clipped_adamw(copy.deepcopy(model), batches, rank, float32)
print("fsdp-adamw", flush=True)
destroy_process_group()
