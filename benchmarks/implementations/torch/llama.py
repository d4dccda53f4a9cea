"""Two layers of Hugging Face's Llama, forward and backward: unchanged, converted, and with Liger's kernels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch

import fusedops.torch as fo
from benchmarks.cases.case import Case
from benchmarks.measuring.timing import Build, Call, Clock, Implementation

SIZES = {
    "cuda": {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8},
    "cpu": {"hidden_size": 256, "intermediate_size": 896, "num_attention_heads": 8, "num_key_value_heads": 2},
}


def implementations(case: Case, clock: Callable[[], Clock]) -> dict[str, Build]:
    from transformers import LlamaConfig, LlamaModel  # an ImportError becomes the row's problem

    sizes, dtype = SIZES[case.device], getattr(torch, case.dtype)
    torch.manual_seed(0)
    with torch.device(case.device):
        model = LlamaModel(LlamaConfig(num_hidden_layers=2, vocab_size=16, use_cache=False, **sizes)).to(dtype)
        x = torch.randn(*case.shape, sizes["hidden_size"], dtype=dtype)
        dout = torch.randn_like(x)
    parameters = list(model.parameters())

    def build(switch: Callable[[Any], Any], compiled: bool = False) -> Implementation:
        """An implementation with its own model over the shared parameters."""
        own = Layers(switch(copy.deepcopy(model, {id(parameter): parameter for parameter in parameters})))
        call = step(torch.compile(own, dynamic=False, fullgraph=True) if compiled else own, x, dout)
        call = partial(call_within, liger_rope, call) if switch is with_liger else call
        return Implementation(call, clock(), checked=False)

    converted = partial(fo.convert, verbose=False)
    result = {"fusedops": partial(build, converted), "eager": partial(build, lambda model: model)}
    if case.device == "cuda":
        result |= {
            "Liger": partial(build, with_liger),
            "fusedops, compiled": partial(build, converted, compiled=True),
            "compiled": partial(build, lambda model: model, compiled=True),
        }
    return result


class Layers(torch.nn.Module):
    """The model's layers without a mask. transformers builds a causal mask for a compiled model, with which attention
    would take three times as long and dominate the time."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.layers, self.rotary = model.layers, model.rotary_emb

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = self.rotary(x, torch.arange(x.shape[1], device=x.device).unsqueeze(0))
        for layer in self.layers:
            x = layer(x, attention_mask=None, position_embeddings=angles)
        return x


def step(layers: torch.nn.Module, x: torch.Tensor, dout: torch.Tensor) -> Call:
    """Forward and backward, with the gradients of x and of all weights."""
    weights = list(layers.parameters())

    def run() -> tuple[torch.Tensor, ...]:
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(layers(leaf), [leaf, *weights], dout)

    return run


def with_liger(model: Any) -> Any:
    with liger_rope():
        import_module("liger_kernel.transformers").apply_liger_kernel_to_llama(
            rope=False, fused_linear_cross_entropy=False, model=model
        )
    return model


@contextmanager
def liger_rope() -> Iterator[None]:
    """Replaces the rotation by Liger's. On exit, restores all functions that Liger replaces in transformers' module."""
    llama = import_module("transformers.models.llama.modeling_llama")
    own = {name: getattr(llama, name) for name in ("apply_rotary_pos_emb", "LlamaRMSNorm", "LlamaMLP")}
    llama.apply_rotary_pos_emb = import_module("liger_kernel.transformers.rope").liger_rotary_pos_emb
    try:
        yield
    finally:
        vars(llama).update(own)


def call_within(context: Callable[[], Any], call: Call) -> Any:
    with context():
        return call()
