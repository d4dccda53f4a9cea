"""Models of Hugging Face, unchanged and converted: steps of families, and generation by a tiny Llama."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import fusedops.torch as fo
from benchmarks.cases.case import Case
from benchmarks.measuring.timing import Build, Clock, Implementation
from benchmarks.operators.models import TINY_LLAMA


def implementations(case: Case, clock: Callable[[], Clock]) -> dict[str, Build]:
    return _generation(case, clock) if case.operator == TINY_LLAMA else _family(case, clock)


def _family(case: Case, clock: Callable[[], Clock]) -> dict[str, Build]:
    """Forward and backward, without an optimizer, at the sizes of the table of families."""
    from audits.families import speed, steps_table  # an ImportError becomes the row's problem

    names = dict(zip(("eager", "fusedops"), steps_table.EAGER, strict=True))
    if case.device == "cuda":
        names |= zip(("compiled", "fusedops, compiled"), steps_table.COMPILED, strict=True)

    def build(name: str) -> Implementation:
        return Implementation(speed.calls(case.operator, [name])[name], clock(), checked=False)

    return {ours: partial(build, name) for ours, name in names.items()}


def _generation(case: Case, clock: Callable[[], Clock]) -> dict[str, Build]:
    """Greedy generation of the case's number of tokens, behind a prompt of four."""
    from transformers import LlamaConfig, LlamaForCausalLM  # an ImportError becomes the row's problem

    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(num_hidden_layers=2, hidden_size=32, intermediate_size=64, vocab_size=64, **heads)
    batch, tokens = case.shape
    torch.manual_seed(0)
    with torch.device(case.device):
        model = LlamaForCausalLM(config).to(getattr(torch, case.dtype)).eval()
        prompt = torch.randint(config.vocab_size, (batch, 4))
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}

    def build(switch: Callable[[Any], Any]) -> Implementation:
        call = partial(switch(copy.deepcopy(model)).generate, prompt, **options)
        return Implementation(call, clock(), checked=False)

    converted = partial(fo.convert, verbose=False)
    return {"fusedops": partial(build, converted), "eager": partial(build, lambda model: model)}
