"""The layers of a Llama under tensor parallelism, forward and backward: converted, and as they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import fusedops.torch as fo
from benchmarks.cases.case import Goal
from benchmarks.distributed import Case
from benchmarks.implementations.torch.llama import SIZES, Layers, step
from benchmarks.measuring.timing import Call

LENGTHS = {"cuda": (8, 8192), "cpu": (2, 32)}  # layers, tokens
COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")


def setup(rank: int, world: int, device: str) -> dict[str, Call]:
    from transformers import LlamaConfig, LlamaModel  # if it is missing, that is what the table says

    (layers, tokens), sizes = LENGTHS[device], SIZES[device]
    mesh = init_device_mesh(device, (world,))
    torch.manual_seed(0)  # the same weights and inputs on all ranks
    with torch.device(device):
        whole = LlamaModel(LlamaConfig(num_hidden_layers=layers, vocab_size=16, use_cache=False, **sizes)).bfloat16()
        x = torch.randn(1, tokens, sizes["hidden_size"], dtype=torch.bfloat16)
        dout = torch.randn_like(x)

    def parallel(model: Any) -> Any:
        plan = dict.fromkeys(COLUMNS, ColwiseParallel()) | dict.fromkeys(ROWS, RowwiseParallel())
        for layer in model.layers:
            parallelize_module(layer, mesh, plan)
        return model

    def build(*changes: Callable[[Any], Any], compiled: bool = False) -> Call:
        model = copy.deepcopy(whole, {id(parameter): parameter for parameter in whole.parameters()})
        for change in changes:
            model = change(model)
        own = Layers(model)
        return step(torch.compile(own, dynamic=False) if compiled else own, x, dout)

    convert = partial(fo.convert, verbose=False)
    result = {"fusedops": build(parallel, convert), "eager": build(parallel), "one GPU": build(convert)}
    if device == "cuda":
        result |= {
            "fusedops, compiled": build(parallel, convert, compiled=True),
            "compiled": build(parallel, compiled=True),
        }
    return result


CASES = [
    Case(
        "Llama, 8 layers of 4096, 8192 tokens",
        setup,
        (
            Goal("torch", "eager", 1 / 0.85, as_time=True),
            Goal("torch", "compiled", implementation="fusedops, compiled", as_time=True),
        ),
    )
]
