"""Training steps of Hugging Face's Llamas, with AdamW: unchanged, converted, compiled, and with Liger's kernels."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import fusedops.torch as fo
from benchmarks.cases.case import Case
from benchmarks.implementations.torch.llama import call_within, liger_rope, with_liger
from benchmarks.measuring.timing import Build, Clock, Implementation
from benchmarks.operators.models import LARGE_LLAMA, LLAMA, SMALL_LLAMA
from fusedops.torch.optim import AdamW

CONFIGS = {
    LARGE_LLAMA: {
        "num_hidden_layers": 8,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    },
    SMALL_LLAMA: {
        "num_hidden_layers": 12,
        "hidden_size": 512,
        "intermediate_size": 1408,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 32_000,
    },
    LLAMA: {
        "num_hidden_layers": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 256,
    },
}


def implementations(case: Case, clock: Callable[[], Clock]) -> dict[str, Build]:
    """The implementations. Each trains its own copy of the model, with the same initial weights."""
    from transformers import LlamaConfig, LlamaForCausalLM  # an ImportError becomes the row's problem

    torch.manual_seed(0)
    with torch.device(case.device):
        model = LlamaForCausalLM(LlamaConfig(use_cache=False, **CONFIGS[case.operator])).to(getattr(torch, case.dtype))
        tokens = torch.randint(model.config.vocab_size, case.shape)

    def build(
        switch: Callable[[Any], Any],
        optimizer: Callable[..., Any],
        compile: Callable[[Any], Any] = plain,
        **inputs: Any,
    ) -> Implementation:
        before = _allocated(case)
        own = switch(copy.deepcopy(model))
        adamw, called = optimizer(own.parameters()), compile(own)

        def step() -> None:
            called(input_ids=tokens, labels=tokens, **inputs).loss.backward()
            adamw.step()
            adamw.zero_grad()

        call = partial(call_within, liger_rope, step) if switch is with_liger else step
        call()  # allocates the moments
        held = _allocated(case) - before if case.device == "cuda" else None
        return Implementation(call, clock(), checked=False, held=held)

    convert = partial(fo.convert, verbose=False)
    fused = partial(torch.optim.AdamW, fused=True)
    result = {
        "fusedops": partial(build, convert, AdamW),
        "eager": partial(build, plain, fused),
        "fusedops, PyTorch's AdamW": partial(build, convert, fused),
        "fusedops, fuse_loss": partial(build, partial(convert, fuse_loss=True), AdamW),
    }
    if case.device == "cuda":
        # Without a mask, transformers compiles a full [T, T] mask that allows for packed sequences.
        ones = {"attention_mask": torch.ones_like(tokens)}
        compiled = partial(torch.compile, dynamic=False)
        captured = partial(compiled, mode="reduce-overhead")  # the optimizer is outside of the graphs
        result |= {
            "Liger": partial(build, with_liger, fused),
            "compiled": partial(build, plain, fused, compile=compiled),
            "fusedops, compiled": partial(build, convert, AdamW, compile=compiled),
            "compiled, mask of ones": partial(build, plain, fused, compile=compiled, **ones),
            "fusedops, compiled, mask of ones": partial(build, convert, AdamW, compile=compiled, **ones),
            "compiled, CUDA graphs": partial(build, plain, fused, compile=captured),
            "fusedops, compiled, CUDA graphs": partial(build, convert, AdamW, compile=captured),
            "fusedops, compiled, CUDA graphs, PyTorch's AdamW": partial(build, convert, fused, compile=captured),
            "fusedops, graphed": partial(build, convert, AdamW, compile=fo.graphed),
        }
    return result


def plain(model: Any) -> Any:
    return model


def _allocated(case: Case) -> int:
    gc.collect()
    return torch.cuda.memory_allocated() if case.device == "cuda" else 0
