"""Parts of JAX that are not public, gathered here to be checked against each new version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax._src import core, dispatch, sharding_impls
from jax._src.interpreters import ad

# Tracers that record a call for a derivative.
_DIFFERENTIATING = tuple(getattr(ad, name) for name in ("JVPTracer", "LinearizeTracer") if hasattr(ad, name))


def is_differentiated(x: Any) -> bool:
    """True if a transform that is open here needs the derivative of x."""
    return isinstance(x, _DIFFERENTIATING)


def varying(tensors: Sequence[Any]) -> Sequence[Any]:
    """The tensors, all of which vary along the same axes of a shard_map around the call."""
    insert = getattr(core, "auto_insert_reshard", None) or getattr(core, "standard_insert_pvary", None)
    return insert(*tensors) if insert else tensors


def abstract_beside(tensors: Sequence[Any], dtype: Any, shape: tuple[int, ...], spec: Any) -> Any:
    """An abstract value that varies along the same axes of a shard_map as the tensors, on their mesh."""
    like = next((x for x in tensors if not x.sharding.mesh.empty), tensors[0])
    sharding = like.sharding.update(spec=jax.sharding.PartitionSpec(*spec))
    return like.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)


def spec_of(sharding: Any, mesh: Any) -> Any:
    """The spec of XLA's sharding. It is empty for a mesh that XLA divides otherwise, or that is not known."""
    try:
        return sharding_impls.parse_flatten_op_sharding(sharding._hlo_sharding, mesh)[0]
    except (AssertionError, KeyError, NotImplementedError, StopIteration, ValueError):
        return jax.sharding.PartitionSpec()


# Lets a primitive's lowering see the devices of the program.
needs_devices = dispatch.prim_requires_devices_during_lowering.add
# Lets an eager call compile the primitive alone, also where a user has turned `jax.jit` off.
compiles_eager_calls = dispatch.simple_impl
