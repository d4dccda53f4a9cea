"""Tests if a call is recorded for a derivative."""

from __future__ import annotations

from typing import Any

import jax
from jax.extend import backend

from fusedops.jax import internals


def may_need_gradient(*tensors: Any) -> bool:
    """True if a transform around this call differentiates it.

    A transform around `jax.jit` is not seen within: the backward then recomputes unsaved tensors.
    """
    return any(map(internals.is_differentiated, tensors))


def may_keep_gradient(x: Any) -> bool:
    """True if a transform around this call differentiates x, and the compiler will not divide the call.

    A shard has no gradient before its device has the sums of the others, and tracing does not see what is sharded. In a
    process of one device nothing is, and within shard_map a call is on the elements of one device.
    """
    return may_need_gradient(x) and (
        _is_within_shard_map() or all(client.device_count() == 1 for client in backend.backends().values())
    )


def _is_within_shard_map() -> bool:
    """True if the call is within a shard_map over all axes of the mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return bool(mesh.axis_names) and set(mesh.manual_axes) == set(mesh.axis_names)
