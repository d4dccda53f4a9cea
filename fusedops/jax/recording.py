"""Tests if a call is recorded for a derivative."""

from __future__ import annotations

from typing import Any

from fusedops.jax import internals


def may_need_gradient(*tensors: Any) -> bool:
    """True if a transform around this call differentiates it.

    A transform around `jax.jit` is not seen within: the backward then recomputes unsaved tensors.
    """
    return any(map(internals.is_differentiated, tensors))


may_keep_gradient = may_need_gradient
