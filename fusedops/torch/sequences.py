"""Sequences that torch shards over processes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fusedops import checks

_ATTENTION = torch._C._nn.scaled_dot_product_attention  # the original


def integers_of(function: str, name: str, value: Tensor | int | None, q: Any) -> Any:
    """A tensor or None unchanged; an integer as a tensor of q's leading dimensions. Nothing here waits for the GPU."""
    integer = checks.one_for_all(function, name, value)
    if integer is None or not isinstance(q, Tensor):  # the operator refuses other types
        return value
    return q.new_full(q.shape[:-3], integer, dtype=torch.int64)


def ring_of_context(function: str, **not_sharded: Any) -> Callable[..., Tensor] | None:
    """Attention over the shards of all processes inside torch's context_parallel; None elsewhere.

    Raises:
        RuntimeError: one of `not_sharded` is given inside the context.
    """
    if not are_sharded():
        return None
    for name, value in not_sharded.items():
        if isinstance(value, Tensor) or value:
            raise RuntimeError(
                f"fusedops.{function}: {name} must not be given inside torch's context_parallel, which shards "
                f"positions; got {type(value).__name__}: call fusedops.torch.distributed.ring_attention"
            )
    from fusedops.torch.distributed.context_parallel import attention_in_context

    return functools.partial(attention_in_context, functional.scaled_dot_product_attention)


def are_sharded() -> bool:
    """True inside torch's context_parallel."""
    attention = functional.scaled_dot_product_attention
    if attention is _ATTENTION:
        return False
    # context_parallel replaces the function by one of its own module, which has moved between versions of torch.
    modules = "torch.distributed.tensor.experimental."
    return isinstance(attention, FunctionType) and attention.__module__.startswith(modules)
