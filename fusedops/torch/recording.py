"""Tests if a call is recorded for a backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fusedops.torch import internals


def may_need_gradient(*tensors: Any) -> bool:
    """True if reverse mode may need a gradient. Forward mode needs no saved tensors."""
    return torch.is_grad_enabled() and any(map(_requires_grad, tensors)) and not is_traced()


def may_keep_gradient(x: Any) -> bool:
    """True if reverse mode may need the gradient of x.

    A shard of a DTensor has no gradient before its process has the sums of the others.
    """
    return may_need_gradient(x) and not internals.is_distributed(x)


def is_traced() -> bool:
    """True while TorchScript's tracer records a graph, which must run with and without gradients."""
    return not torch.compiler.is_compiling() and internals.tracing_state() is not None


def _requires_grad(x: Any) -> bool:
    if type(x) is Tensor or type(x) is torch.nn.Parameter:
        return x.requires_grad
    if not isinstance(x, Tensor):
        return False
    with torch._C.DisableTorchFunctionSubclass():  # a subclass may not support requires_grad
        return x.requires_grad
