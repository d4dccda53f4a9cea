"""PyTorch: a model on two ranks, each a process of its own; attention inside torch's context_parallel."""

from __future__ import annotations

import functools

import pytest

from tests.helpers.converting import converted
from tests.helpers.hugging_face import FAMILIES
from tests.helpers.running import run_ranks

WAYS = ["ddp", "ddp-compiled", "fsdp", "fsdp-bfloat16", "fsdp-compiled", "fsdp-adamw"]


@pytest.mark.slow
def test_two_ranks(torch_backend, tmp_path):
    """On the CPU with gloo, on two GPUs with NCCL."""
    if torch_backend.device == "cuda" and torch_backend.gpus() < 2:
        pytest.skip("GPU: only one")
    for log in run_ranks("torch_distribution.py", device=torch_backend.device, world=2, folder=tmp_path):
        assert [line for line in log.splitlines() if line in WAYS] == WAYS


@pytest.fixture
def sharded(torch_backend):
    """A function that makes torch's context of sharded sequences; here over one process."""
    dist = pytest.importorskip("torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        yield lambda: context_parallel(mesh, buffers=[torch_backend.torch.zeros(1, 4)], buffer_seq_dims=[1])
    finally:
        dist.destroy_process_group()


def attentions(torch, fo, device):
    """Every way to our attention: names and functions without arguments."""
    x = torch.randn(1, 4, 2, 8, device=device)
    hidden = x.flatten(2)
    offsets = torch.tensor([0, 4], dtype=torch.int32, device=device)
    layer = fo.nn.MultiheadAttention(16, 2, batch_first=True, device=device)
    of_torch = converted(fo, torch.nn.MultiheadAttention(16, 2, batch_first=True, device=device))
    compiled = torch.compile(fo.attention, backend="aot_eager")
    yield "attention", lambda: fo.attention(x, x, x)
    yield "dropout", lambda: fo.attention(x, x, x, dropout=0.5)
    yield "attention_varlen", lambda: fo.attention_varlen(x[0], x[0], x[0], offsets, offsets)
    yield "layer", lambda: layer(hidden, hidden, hidden, need_weights=False)
    yield "converted", lambda: of_torch(hidden, hidden, hidden, need_weights=False)
    yield "compiled", lambda: compiled(x, x, x)


def check_refused_inside(sharded, calls):
    for _, call in calls:
        call()
    with sharded():
        for name, call in calls:
            with pytest.raises(RuntimeError, match="q, k and v must hold whole sequences; got shards of torch's"):
                pytest.fail(f"{name} computed {call()}")
    for _, call in calls:
        call()


def test_context_parallel(torch_backend, fo, sharded):
    """torch's own attention sees the keys of all processes; ours would see a shard, and says so."""
    torch = torch_backend.torch
    check_refused_inside(sharded, [*attentions(torch, fo, torch_backend.device)])


def test_context_parallel_of_a_converted_model(torch_backend, fo, transformers, sharded):
    torch = torch_backend.torch
    model = converted(fo, FAMILIES["llama"].build("float32", torch_backend.device))
    tokens = torch.arange(12, device=torch_backend.device)[None]
    check_refused_inside(sharded, [("llama", lambda: model(tokens))])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("other", [lambda *_: None, functools.partial(print)], ids=["function", "partial"])
def test_another_attention_of_a_program(torch_backend, fo, monkeypatch, other, compiled):
    """A program's own replacement of torch's attention shards nothing."""
    torch = torch_backend.torch
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", other)
    x = torch.randn(1, 4, 2, 8, device=torch_backend.device)
    attention = torch_backend.traced(fo.attention) if compiled else fo.attention
    assert attention(x, x, x).shape == x.shape
