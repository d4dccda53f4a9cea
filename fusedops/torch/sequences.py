"""Sequences that torch shards over processes."""

from __future__ import annotations

from types import FunctionType

import torch
from torch.nn import functional

_ATTENTION = torch._C._nn.scaled_dot_product_attention  # torch.nn.functional's own, unless a program replaces it


def check_whole_sequences(function: str) -> None:
    """Raises RuntimeError inside torch's context_parallel, whose attention alone sees the keys of other processes."""
    attention = functional.scaled_dot_product_attention
    if attention is _ATTENTION:
        return
    # context_parallel replaces the function by one of its own module, which has moved between versions of torch.
    if isinstance(attention, FunctionType) and attention.__module__.startswith(
        "torch.distributed.tensor.experimental."
    ):
        raise RuntimeError(
            f"fusedops.{function}: q, k and v must hold whole sequences; got shards of torch's context_parallel: call "
            "torch.nn.functional.scaled_dot_product_attention there, and fusedops.torch.revert(model) if converted"
        )
