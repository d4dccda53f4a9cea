"""Calls on sharded arrays: each device calls the operator on its shards, along the axes that the operator declares.

XLA's partitioner would gather the operands of a custom call that it does not know.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from fusedops import axes
from fusedops.axes import ALL, MEAN, TERM, Division, Share
from fusedops.declarations import Operator
from fusedops.jax import internals

Shapes = Sequence[Sequence[int]]
Names = tuple[str, ...]  # axes of a mesh
Chosen = tuple[Division, list[Share], Names]


def is_partitioned(ctx: Any) -> bool:
    """True if the compiler divides the program that is lowered among devices. Within shard_map the user does."""
    context = ctx.module_context.axis_context
    if hasattr(context, "manual_axes"):
        return set(context.manual_axes) != set(context.mesh.axis_names)
    return (getattr(context, "num_devices", None) or 1) > 1


class Divided:
    """The axes of an operator along which a call can be divided, and the shares of its tensors.

    `tensors`: the shapes of all tensors in JAX. `inputs`: those of each input's tensors in the core. The results are
    the outputs and the mutated inputs.
    """

    def __init__(
        self,
        operator: Operator,
        attributes: Mapping[str, Any],
        tensors: Shapes,
        inputs: Sequence[Shapes],
        outputs: Shapes,
    ) -> None:
        mutated = [shape for x, items in zip(operator.inputs, inputs, strict=True) if x.updated for shape in items]
        self.shapes = [*tensors, *outputs, *mutated]
        self.places = [*itertools.accumulate(map(len, inputs), initial=0)]  # of each input's first tensor
        self.count = len(self.shapes) - len(outputs) - len(mutated)
        present = [items or None for items in inputs]
        self.weights = axes.means(operator, attributes, present)
        self.of_parts = axes.as_sum(operator, attributes, present)
        self.divisions: list[tuple[int, Division, list[Share]]] = []  # with the place in lists
        lengths = [len(items) for x, items in zip(operator.inputs, inputs, strict=True) if x.kind == "list"]
        for place in range(max(lengths, default=1)):  # the tensors at one place of all lists are a call of their own
            at = [place if x.kind == "list" else 0 for x in operator.inputs]
            shapes = [items[k] if k < len(items) else None for items, k in zip(inputs, at, strict=True)]
            for division in axes.divisions(operator, attributes, shapes, outputs):
                if division.place is not None:
                    continue  # a part's place must be known when the program is compiled
                shares = [
                    [share if i == k else ALL for i in range(len(items))]
                    for items, k, share in zip(inputs, at, division.inputs, strict=True)
                ]
                of_mutated = [y for x, each in zip(operator.inputs, shares, strict=True) if x.updated for y in each]
                self.divisions.append((place, division, [*itertools.chain(*shares), *division.outputs, *of_mutated]))

    def choose(self, mesh: Any, specs: Sequence[Any]) -> list[Chosen]:
        """The axes of the mesh that divide each axis: those of the first tensor that is sharded along it."""
        used: dict[int, set[str]] = {}
        chosen: list[Chosen] = []
        for place, division, shares in self.divisions:
            for share, spec in zip(shares, specs, strict=False):
                entry = spec[share.dim] if share.kind == "part" and share.dim < len(spec) else None
                names = (entry,) if isinstance(entry, str) else tuple(entry or ())
                parts = math.prod(mesh.shape[name] for name in names)
                is_free = used.setdefault(place, set()).isdisjoint(names) and _allows(division, chosen)
                if parts > 1 and is_free and all(size % parts == 0 for size in division.sizes):
                    used[place].update(names)
                    chosen.append((division, shares, names))
                    break
        return chosen

    def specs(self, chosen: Sequence[Chosen]) -> list[PartitionSpec]:
        """The specs of all tensors."""

        def names_at(tensor: int, dim: int) -> Names | None:
            return next((names for _, shares, names in chosen if shares[tensor].is_part(dim)), None)

        return [PartitionSpec(*(names_at(i, dim) for dim in range(len(x)))) for i, x in enumerate(self.shapes)]

    def function(self, whole: Callable[..., Any], part: Callable[..., Any]) -> Callable[..., Any]:
        """The call as a function whose calls the partitioner divides.

        `whole` is the call on all elements, and `part` that on a part of them, with the attributes `of_parts`.
        """

        def partition(mesh: Any, arguments: Sequence[Any], results: Sequence[Any]) -> Any:
            chosen = self.choose(mesh, [internals.spec_of(x.sharding, mesh) for x in (*arguments, *results)])
            shardings = [NamedSharding(mesh, spec) for spec in self.specs(chosen)]

            def local(*shards: Any) -> Any:
                # The mesh that a user sets may be that of the compiler's callback. With explicit axes the types of
                # shards would have shardings, and so would scalars within a sum over devices, which XLA then refuses.
                with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
                    return self._local(part if chosen else whole, mesh, chosen, shards)

            return mesh, local, shardings[self.count :], tuple(shardings[: self.count])

        divided = custom_partitioning(whole)
        rule, options = self._rule()
        divided.def_partition(partition, decode_shardings=False, sharding_rule=rule, **options)
        return divided

    def _local(self, call: Callable[..., Any], mesh: Any, chosen: Sequence[Chosen], shards: Sequence[Any]) -> Any:
        for _, shares, names in chosen:
            is_first = jax.lax.axis_index(names) == 0  # one part gets a term, the others zeros
            pairs = zip(shards, shares, strict=False)
            shards = [jnp.where(is_first, x, jnp.zeros_like(x)) if s == TERM else x for x, s in pairs]
        values = call(*self._with_places(mesh, chosen, shards))
        weights = {} if self.of_parts else self.weights
        for _, shares, names in chosen:
            values = _joined(values, shares[self.count :], weights, names)
        if chosen and self.of_parts:
            means = {i: values[i] / values[weight] for i, weight in self.weights.items()}
            values = [means.get(i, x) for i, x in enumerate(values)]
        return values

    def _with_places(self, mesh: Any, chosen: Sequence[Chosen], shards: Sequence[Any]) -> list[Any]:
        """The shards, with the places of this device's elements in a seed that numbers elements.

        The places on all devices are a constant, since JAX may have no integers of 64 bits to compute them.
        """
        numbered = next((division.numbered for division, _, _ in chosen), None)
        if numbered is None:
            return [*shards]
        parts = [math.prod(mesh.shape[name] for name in names) for _, _, names in chosen]
        places = []
        for indices in itertools.product(*map(range, parts)):
            offsets, sizes = [0] * len(numbered.shape), [*numbered.shape]
            for (division, _, _), count, index in zip(chosen, parts, indices, strict=True):
                dim = division.numbered_dim
                sizes[dim] = numbered.shape[dim] // count
                offsets[dim] = index * sizes[dim]
            places.append(numbered.runs(offsets, sizes))
        at = self.places[numbered.seed]
        seed, numbers = shards[at], np.array(places, np.int64)
        table = numbers.view(np.uint32).reshape(*numbers.shape, 2) if seed.ndim > 1 else numbers  # words, or int64
        own = jnp.asarray(table)[jax.lax.axis_index(tuple(itertools.chain(*(names for _, _, names in chosen))))]
        return [*shards[:at], jnp.concatenate([seed, own]), *shards[at + 1 :]]

    def _rule(self) -> tuple[str, dict[str, Any]]:
        """The rule for the propagation of shardings, the sizes of its factors, and those that are not divided.

        Where tensors differ in size along an axis, such as heads of queries and keys, the larger dimension is a product
        of the axis and a factor of its own.
        """
        sizes: dict[str, int] = {}
        fixed: list[str] = []

        def factor(tensor: int, dim: int, size: int) -> str:
            for i, (_, division, shares) in enumerate(self.divisions):
                least = min(division.sizes)
                if not shares[tensor].is_part(dim) or least < 2 or size % least:
                    continue
                if size == least:
                    return f"a{i}"
                name = f"r{tensor}_{dim}"
                sizes[name] = size // least
                fixed.append(name)
                return f"(a{i} {name})"
            fixed.append(f"f{tensor}_{dim}")
            return fixed[-1]

        texts = [" ".join(factor(i, dim, size) for dim, size in enumerate(x)) for i, x in enumerate(self.shapes)]
        rule = f"{', '.join(texts[: self.count])} -> {', '.join(texts[self.count :])}"
        return rule, {**sizes, "need_replication_factors": tuple(fixed)}


def is_typed(tensors: Sequence[Any]) -> bool:
    """True if the types of abstract values have shardings, as on a mesh of explicit axes."""
    return any(entry is not None for x in tensors for entry in x.sharding.spec)


def first_along(x: Any, names: Any) -> Any:
    """The tensor with its first dimension along these explicit axes of its mesh; None for a whole one."""
    now = jax.typeof(x).sharding
    wanted = now.update(spec=PartitionSpec(names, *now.spec[1:]))
    return x if wanted == now else jax.sharding.reshard(x, wanted)


def _allows(division: Division, chosen: Sequence[Chosen]) -> bool:
    """True if a seed can describe the parts along this axis and the chosen ones together."""
    dims = [x.numbered_dim for x in (division, *(each for each, _, _ in chosen))]
    return division.numbered is None or division.numbered.allows(dims)


def _joined(values: Sequence[Any], shares: Sequence[Share], weights: Mapping[int, int], names: Names) -> list[Any]:
    """The results of the whole call from those of the parts."""
    joined = list(values)
    for i, share in enumerate(shares):
        if share in (TERM, MEAN) and i not in weights:
            joined[i] = jax.lax.psum(values[i], names)
        elif i in weights and (share == MEAN or share.is_weighted):
            weight = values[weights[i]]
            total = jax.lax.psum(weight, names)
            # A part of weight 0 has the mean NaN. Its gradients are 0, or NaN throughout if labels have a class of
            # weight 0. They count if all parts are without weight.
            if share.is_weighted or values[i].dtype != weight.dtype:
                own = jnp.where(total == 0, values[i], 0)
                mine = jnp.where(weight == 0, own, values[i] * (weight / total)).astype(values[i].dtype)
                joined[i] = jax.lax.psum(mine, names) if share == MEAN else mine
            else:  # all sums at once
                own = jnp.where(weight == 0, values[i].reshape(-1)[:1].sum(), 0)
                terms = jnp.where(weight == 0, 0, values[i] * weight)
                rest, terms = (jax.lax.psum(x, names) for x in (own, terms))
                joined[i] = jnp.where(total == 0, rest, terms / total)
    return joined
