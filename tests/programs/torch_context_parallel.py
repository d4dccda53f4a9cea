"""Run by torch/test_context_parallel.py, once per rank: attention over positions that are divided among the ranks."""

import copy
import inspect
import itertools
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.experimental import context_parallel
from torch.utils.checkpoint import checkpoint

import fusedops.torch as fo
from fusedops.torch.distributed import gather_positions, ring_attention, shard_positions
from tests.helpers.attention import STORAGE
from tests.helpers.checks import check_backward, check_forward
from tests.helpers.frameworks import backend as backend_of
from tests.helpers.hugging_face import FAMILIES, VOCABULARY, Family
from tests.helpers.ranks import destroy_process_group, init_process_group
from tests.helpers.specification import Sample
from tests.specifications import attention, attention_varlen

sections, device, rank, world, store = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
torch.set_num_threads(1)
init_process_group(device, rank, world, store, seconds=60)
group = dist.group.WORLD
mesh = dist.device_mesh.init_device_mesh(device, (world,))
backend = backend_of("torch", device)
POSITIONS = 24  # of whole sequences: a multiple of the chunks


class OfParts:
    """A specification whose gradients are sums of parts: each part is rounded, and so is each sum of two."""

    def storage_roundings(self, **inputs: Any) -> dict[str, float]:
        return {**STORAGE, **{name: STORAGE[name] + 4 * world for name in ("dk", "dv")}}


class Whole(OfParts, attention.Attention):
    pass


class Packed(OfParts, attention_varlen.AttentionVarlen):
    pass


def computed(inputs: dict[str, Any], dim: int, load_balance: bool, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The output and the gradients of a call on parts, gathered."""
    where = {"group": group, "dim": dim, "load_balance": load_balance}
    parts = [shard_positions(inputs[name], **where).requires_grad_() for name in "qkv"]
    y = ring_attention(*parts, group=group, load_balance=load_balance, **options)
    outputs = (gather_positions(y.detach(), **where),)
    (dy,) = backend.upstream(outputs)
    found = torch.autograd.grad(y, parts, shard_positions(dy, **where))
    return outputs, {name: gather_positions(x, **where) for name, x in zip("qkv", found, strict=True)}


def check(spec: Any, sample: Sample, dtype: str, load_balance: bool) -> None:
    inputs = backend.tensors(sample, dtype)
    dim, options = sample.options.get("seq_dim", -3), dict(sample.options)
    if "lengths" in inputs:
        options["lengths"] = inputs["lengths"]
    if "offsets_q" in inputs:
        options["offsets"] = inputs["offsets_q"]
    results = computed(inputs, dim, load_balance, **options)
    check_forward(backend, spec, sample, inputs, results[0])
    check_backward(backend, spec, sample, inputs, results)
    again = computed(inputs, dim, load_balance, **options)
    for y, other in zip((*results[0], *results[1].values()), (*again[0], *again[1].values()), strict=True):
        assert torch.equal(y, other), f"{sample}: two calls differ"


def options() -> None:
    """All options together, and every layout, against the reference of the whole sequences."""
    random = np.random.default_rng(0)
    sizes = {"heads": (4, 2), "queries": POSITIONS, "keys": POSITIONS, "features": 8, "features_v": 6}
    for causal, window, softcap, lengths, seq_dim, load_balance in itertools.product(
        (False, True), (None, 1, 7), (0.0, 2.0), (None, np.array([POSITIONS, 5])), (-3, -2), (False, True)
    ):
        given = {"causal": causal, "window": window, "softcap": softcap, "lengths": lengths, "seq_dim": seq_dim}
        sample = attention.call(random, str(given), **sizes, **given)
        check(Whole(), sample, "float64", load_balance)
    if world > 2:
        return
    count = 24 * POSITIONS  # of several tiles
    for dtype, features in (("float32", 8), ("float16", 64), ("bfloat16", 64), ("bfloat16", 128)):
        shape = {"heads": (4, 2), "queries": count, "keys": count, "features": features, "features_v": features}
        check(Whole(), attention.call(random, leading=(1,), causal=True, scale=0.3, **shape), dtype, True)


def packed() -> None:
    """Sequences that begin and end within parts."""
    random = np.random.default_rng(1)
    for lengths in ([5, 0, 11, 8], [POSITIONS], [1] * POSITIONS):
        for causal, window, load_balance in itertools.product((False, True), (None, 4), (False, True)):
            if window and not causal:
                continue
            sizes = {"heads": (4, 2), "features": 8, "causal": causal, "window": window}
            check(Packed(), attention_varlen.call(random, lengths, lengths, **sizes), "float64", load_balance)


def modes() -> None:
    """Under autocast, with checkpoints, without a gradient, and to the second order."""
    random = np.random.default_rng(2)
    sample = attention.call(random, heads=(2, 1), queries=POSITIONS, keys=POSITIONS, causal=True)
    inputs = backend.tensors(sample, "bfloat16")
    wide = {name: x.float() for name, x in inputs.items()}
    with torch.autocast(device, torch.bfloat16):
        outputs, gradients = computed(wide, -3, True, causal=True)
    narrow = {name: x.bfloat16() for name, x in gradients.items()}
    check_backward(backend, Whole(), sample, inputs, (outputs, narrow))

    def attend(*parts: torch.Tensor) -> torch.Tensor:
        return ring_attention(*parts, group=group, causal=True)

    parts = [shard_positions(wide[name].double(), group=group).requires_grad_() for name in "qkv"]
    expected = torch.autograd.grad(attend(*parts).square().sum(), parts)
    again = torch.autograd.grad(checkpoint(attend, *parts, use_reentrant=False).square().sum(), parts)
    assert all(map(torch.equal, expected, again))
    with torch.no_grad():
        assert torch.equal(attend(*parts), torch.compile(attend, backend="aot_eager")(*parts))
    # The second derivative is that of the whole: the transpose of a gather is a sum, and that of it a gather.
    first = torch.autograd.grad(attend(*parts).square().sum(), parts, create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), parts)
    whole = [wide[name].double().requires_grad_() for name in "qkv"]
    first = torch.autograd.grad(fo.attention(*whole, causal=True).square().sum(), whole, create_graph=True)
    exact = torch.autograd.grad(sum(x.square().sum() for x in first), whole)
    for got, reference in zip(second, exact, strict=True):
        limit = torch.finfo(torch.float64).eps ** 0.5 * float(reference.abs().max())
        torch.testing.assert_close(gather_positions(got, group=group), reference, rtol=0, atol=limit)


def positions() -> None:
    """Parts of any tensor, in both orders; torch's context_parallel has the same one."""
    x = torch.arange(2 * POSITIONS, device=device).reshape(2, POSITIONS)
    for load_balance in (False, True):
        part = shard_positions(x, group=group, load_balance=load_balance)
        assert torch.equal(gather_positions(part, group=group, load_balance=load_balance), x)
    buffer = x.clone()
    with context_parallel(mesh, buffers=[buffer], buffer_seq_dims=[1]):
        assert torch.equal(buffer, shard_positions(x, group=group, load_balance=True))


def errors() -> None:
    """On every rank, without a hang."""
    q = torch.ones(2, 4, 2, 8, device=device)
    calls: list[tuple[Any, str, Any]] = [
        (RuntimeError, "all processes must pass the same shapes", lambda: ring(q[:, : 4 - rank % 2])),
        (RuntimeError, "all processes must pass the same shapes", lambda: ring(q, causal=rank == 0)),
        (RuntimeError, "all processes must pass the same shapes", lambda: ring(q.to(types[rank % 2]))),
        (RuntimeError, "all processes must pass the same shapes", lambda: ring(q, scale="1" if rank else None)),
        (RuntimeError, "all processes must pass the same shapes", lambda: ring(None if rank else q, q)),
        (RuntimeError, "q must have an even number of positions", lambda: ring(q[:, :3], load_balance=True)),
        (RuntimeError, r"k must have as many positions as q, 4; got shape \[2, 3, 2, 8\]", lambda: ring(q, q[:, :3])),
        (RuntimeError, r"q must have at least 3 dimensions; got shape \[2, 8\]", lambda: ring(q[0, 0])),
        (RuntimeError, "k must have a number of heads that divides q's, 2; got 0", lambda: ring(q, q[:, :, :0])),
        (ValueError, "window must be at least 1; got 0", lambda: ring(q, window=0)),
        (ValueError, "group must have a backend for tensors on meta", lambda: ring(q.to("meta"))),
        (TypeError, "q must be a torch.Tensor, the part of this process; got NoneType", lambda: ring(None)),
        (TypeError, "k must be a torch.Tensor, the part of this process; got DTensor", lambda: ring(q, placed)),
        (ValueError, "x must have a multiple of", lambda: shard_positions(q[:, :1], group=group)),
        (ValueError, "window must be None beside offsets", lambda: ring(q[0], offsets=ends, window=2)),
        (RuntimeError, "offsets must be from 0 to", lambda: ring(q[0], offsets=ends.cpu() + 1)),
    ]
    types = (torch.float32, torch.float64)
    placed = DTensor.from_local(q, mesh, [Replicate()])
    ends = torch.tensor([0, 4 * world], dtype=torch.int32, device=device)

    def ring(q: Any, k: Any = None, **options: Any) -> torch.Tensor:
        return ring_attention(q, q if k is None else k, q if k is None else k, group=group, **options)

    for kind, sentence, call in calls:
        with pytest.raises(kind, match=rf"fusedops\.distributed\.\w+: {sentence}"):
            call()
    assert ring(q, scale=1 if rank else 1.0).shape == q.shape  # an error leaves nothing behind, and equal numbers agree


def context() -> None:
    """Functions and layers inside torch's context_parallel, and the calls that cannot be computed there."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, POSITIONS, 8, dtype=torch.float64, device=device) for heads in (4, 2, 2))
    layer = fo.nn.MultiheadAttention(16, 2, batch_first=True, dtype=torch.float64, device=device)
    x = torch.randn(2, POSITIONS, 16, dtype=torch.float64, device=device)
    expected = fo.attention(q, k, v, causal=True, seq_dim=-2), layer(x, x, x, need_weights=False)[0]
    parts = [y.clone() for y in (q, k, v, x)]
    offsets = torch.tensor([0, 4], dtype=torch.int32, device=device)
    with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2, 2, 2, 1]):
        *heads, h = parts
        got = fo.attention(*heads, causal=True, seq_dim=-2), layer(h, h, h, need_weights=False)[0]
        compiled = torch.compile(fo.attention, backend="aot_eager")
        assert torch.equal(compiled(*heads, causal=True, seq_dim=-2), got[0])
        rows = [y.transpose(1, 2) for y in heads]
        for name, options in (
            ("mask", {"mask": torch.ones(1, dtype=torch.bool, device=device)}),
            ("lengths", {"lengths": torch.tensor([1, 1], device=device)}),
            ("dropout", {"dropout": 0.5}),
            ("return_lse", {"return_lse": True}),
        ):
            with pytest.raises(RuntimeError, match=f"{name} must not be given inside torch's context_parallel"):
                fo.attention(*rows, **options)
        with pytest.raises(RuntimeError, match="offsets_q must not be given inside torch's context_parallel"):
            fo.attention_varlen(*(y[0, :4] for y in rows), offsets, offsets)
    for part, whole, dim in zip(got, expected, (2, 1), strict=True):
        y = gather_positions(part, group=group, dim=dim, load_balance=True)
        torch.testing.assert_close(y, whole, rtol=0, atol=torch.finfo(torch.float64).eps ** 0.5)


def transformers() -> None:
    """Five steps of converted models inside the context have the losses and gradients of one process, and those of the
    models that are not converted, whose norms and angles are float32."""
    for name in ("llama", "qwen3_moe", "gemma3", "bert"):
        torch.manual_seed(0)
        model = FAMILIES.get(name, Family(name)).build("float64", device, experts_implementation="eager")
        model.train(name == "llama")  # others have dropout
        tokens = torch.randint(VOCABULARY, (2, POSITIONS + 1), generator=torch.Generator().manual_seed(1)).to(device)
        original = steps(copy.deepcopy(model), tokens, is_parallel=False)
        fo.convert(model, verbose=False)
        alone = steps(copy.deepcopy(model), tokens, is_parallel=False)
        parallel = steps(model, tokens, is_parallel=True)
        # The gradients of keys' biases are zero but for rounding.
        rounding = torch.finfo(torch.float64).eps * max(float(y.abs().max()) for y in alone)
        for expected, dtype in ((alone, torch.float64), (original, torch.float32)):
            for got, reference in zip(parallel, expected, strict=True):
                limit = torch.finfo(dtype).eps ** 0.5 * float(reference.abs().max()) + rounding
                torch.testing.assert_close(got, reference, rtol=0, atol=limit)


def steps(model: Any, tokens: torch.Tensor, is_parallel: bool) -> list[torch.Tensor]:
    """The losses and gradients of five steps; in parallel, means over the ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    # As accelerate does: no mask, which transformers makes of the positions that it finds.
    for module in model.modules() if is_parallel else ():
        if type(module).__name__.endswith("Attention"):
            module.register_forward_pre_hook(without_mask, with_kwargs=True)
    for _ in range(5):
        x, labels = tokens[:, :-1].clone(), tokens[:, 1:].clone()
        places = torch.arange(POSITIONS, device=device)[None].repeat(2, 1)
        if is_parallel:
            with context_parallel(mesh, buffers=[x, labels, places], buffer_seq_dims=[1, 1, 1]):
                loss = backward(model, x, labels, places)
            for y in (loss, *(p.grad for p in model.parameters())):
                dist.all_reduce(y)
                y /= world
        else:
            loss = backward(model, x, labels, places)
        found += [loss, *(p.grad.clone() for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    return found


def backward(model: Any, x: torch.Tensor, labels: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    logits = model(x, position_ids=places, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    return loss.detach()


def without_mask(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    place = [*inspect.signature(module.forward).parameters].index("attention_mask")
    return (*args[:place], *(None for _ in args[place : place + 1]), *args[place + 1 :]), {
        name: None if name == "attention_mask" else value for name, value in kwargs.items()
    }


for name in sections.split(","):
    globals()[name]()
    print(name, flush=True)
destroy_process_group()
