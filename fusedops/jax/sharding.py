"""Calls on sharded arrays: each device calls the operator on its shards, along the axes that the operator declares.

XLA's partitioner would gather the operands of a custom call that it does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from fusedops import axes
from fusedops.axes import MEAN, TERM, Division, Share
from fusedops.declarations import Operator

Shapes = Sequence[Sequence[int] | None]
Names = tuple[str, ...]  # axes of a mesh


def is_partitioned(ctx: Any) -> bool:
    """True if the compiler divides the program that is lowered among devices. Within shard_map the user does."""
    context = ctx.module_context.axis_context
    if hasattr(context, "manual_axes"):
        return set(context.manual_axes) != set(context.mesh.axis_names)
    return (getattr(context, "num_devices", None) or 1) > 1


def partitioned(
    function: Callable[..., Any], operator: Operator, attributes: Mapping[str, Any], inputs: Shapes, outputs: Shapes
) -> Callable[..., Any]:
    """A call of an operator without lists, as a function whose calls the partitioner divides.

    `inputs`: their shapes; None for an absent one, which `function` does not take.
    """
    found = axes.divisions(operator, attributes, inputs, [shape or () for shape in outputs])
    # A part's offset is an attribute, which must be known when the program is compiled.
    divisible = [division for division in found if division.place is None]
    given = [i for i, shape in enumerate(inputs) if shape is not None]
    weights = axes.means(operator, attributes, inputs)
    ranks = [*(len(inputs[i] or ()) for i in given), *(len(shape or ()) for shape in outputs)]

    def shares(division: Division) -> list[Share]:
        return [*(division.inputs[i] for i in given), *division.outputs]

    def partition(mesh: Any, arguments: Sequence[Any], results: Sequence[Any]) -> Any:
        specs = [x.sharding.spec for x in (*arguments, *results)]
        chosen = _choose(mesh, [(division, shares(division)) for division in divisible], specs)
        shardings = [
            NamedSharding(mesh, PartitionSpec(*(_axes_of(chosen, tensor, dim) for dim in range(rank))))
            for tensor, rank in enumerate(ranks)
        ]

        def local(*shards: Any) -> Any:
            for division, names in chosen:
                shards = tuple(_term(x, names) if s == TERM else x for x, s in zip(shards, shares(division), strict=False))
            values = function(*shards)
            for division, names in chosen:
                values = _joined(values, division.outputs, weights, names)
            return values

        return mesh, local, shardings[len(given) :], tuple(shardings[: len(given)])

    def _axes_of(chosen: Sequence[tuple[Division, Names]], tensor: int, dim: int) -> Names | None:
        for division, names in chosen:
            if shares(division)[tensor] == Share("part", dim):
                return names
        return None

    divided = custom_partitioning(function)
    rule, sizes, fixed = _rule([(d.sizes, shares(d)) for d in divisible], [*(inputs[i] or () for i in given)], outputs)
    divided.def_partition(partition, sharding_rule=rule, need_replication_factors=fixed, **sizes)
    return divided


def _choose(mesh: Any, divisions: Sequence[tuple[Division, list[Share]]], specs: Sequence[Any]) -> list[tuple[Division, Names]]:
    """The axes of the mesh along which each axis of the operator is divided: those of the first sharded tensor."""
    used: set[str] = set()
    chosen = []
    for division, shares in divisions:
        for share, spec in zip(shares, specs, strict=True):
            entry = spec[share.dim] if share.kind == "part" and share.dim < len(spec) else None
            names = (entry,) if isinstance(entry, str) else tuple(entry or ())
            parts = math.prod(mesh.shape[name] for name in names)
            if parts > 1 and used.isdisjoint(names) and all(size % parts == 0 for size in division.sizes):
                used.update(names)
                chosen.append((division, names))
                break
    return chosen


def _term(x: Any, names: Names) -> Any:
    """An input that one part gets; the others get zeros."""
    return jnp.where(jax.lax.axis_index(names) == 0, x, jnp.zeros_like(x))


def _joined(values: Sequence[Any], shares: Sequence[Share], weights: Mapping[int, int], names: Names) -> list[Any]:
    """The results of the whole call from those of the parts."""
    joined = list(values)
    for i, share in enumerate(shares):
        if share == TERM:
            joined[i] = jax.lax.psum(values[i], names)
        elif share == MEAN:
            weight = values[weights[i]].astype(values[i].dtype)
            total = jax.lax.psum(weight, names)
            # A part without any weight has the mean NaN.
            mine = jnp.where(weight == 0, jnp.zeros_like(values[i]), values[i] * weight)
            joined[i] = jax.lax.psum(mine, names) / total
    return joined


def _rule(
    divisions: Sequence[tuple[tuple[int, ...], list[Share]]], inputs: Sequence[Sequence[int]], outputs: Shapes
) -> tuple[str, dict[str, int], tuple[str, ...]]:
    """The sharding rule for the propagation of shardings, the sizes of its factors, and those that stay whole.

    Where tensors differ in size along an axis, such as heads of queries and keys, the larger dimension is a product of
    the axis and a factor of its own.
    """
    sizes: dict[str, int] = {}
    fixed: list[str] = []

    def dimension(tensor: int, dim: int, size: int) -> str:
        for i, (of_axis, shares) in enumerate(divisions):
            if shares[tensor] == Share("part", dim):
                least = min(of_axis)
                if size == least:
                    return f"a{i}"
                if least and size % least == 0:
                    sizes[f"r{tensor}_{dim}"] = size // least  # the size of the axis is that of a whole dimension
                    fixed.append(f"r{tensor}_{dim}")
                    return f"(a{i} r{tensor}_{dim})"
        fixed.append(f"f{tensor}_{dim}")
        return f"f{tensor}_{dim}"

    shapes = [*inputs, *(shape or () for shape in outputs)]
    texts = [" ".join(dimension(t, d, size) for d, size in enumerate(shape)) for t, shape in enumerate(shapes)]
    count = len(inputs)
    return f"{', '.join(texts[:count])} -> {', '.join(texts[count:])}", sizes, tuple(fixed)
