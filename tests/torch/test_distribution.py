"""PyTorch: a model on two ranks, each a process of its own; a program's own attention in place of torch's."""

from __future__ import annotations

import functools

import pytest

from tests.helpers.running import run_ranks

WAYS = ["ddp", "ddp-compiled", "fsdp", "fsdp-bfloat16", "fsdp-compiled", "fsdp-adamw"]


@pytest.mark.slow
def test_two_ranks(torch_backend, tmp_path):
    """On the CPU with gloo, on two GPUs with NCCL."""
    if torch_backend.device == "cuda" and torch_backend.gpus() < 2:
        pytest.skip("GPU: only one")
    for log in run_ranks("torch_distribution.py", device=torch_backend.device, world=2, folder=tmp_path):
        assert [line for line in log.splitlines() if line in WAYS] == WAYS


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("other", [lambda *_: None, functools.partial(print)], ids=["function", "partial"])
def test_another_attention_of_a_program(torch_backend, fo, monkeypatch, other, compiled):
    """A program's own replacement of torch's attention does not shard."""
    torch = torch_backend.torch
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", other)
    x = torch.randn(1, 4, 2, 8, device=torch_backend.device)
    attention = torch_backend.traced(fo.attention) if compiled else fo.attention
    assert attention(x, x, x).shape == x.shape
