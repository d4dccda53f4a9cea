"""DTensor's sharding strategies of all operators, forward and backward, from the axes that they declare.

A strategy lists the placements with which every process can call the operator on its own shards. DTensor chooses those
that cost the least communication, redistributes the inputs accordingly, and keeps the choice for calls of the same
shapes, placements and attributes.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed._functional_collectives import _are_we_tracing
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSchema, OpSpec, OpStrategy, RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import generate_redistribute_costs, register_op_strategy
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from fusedops.axes import ALL, Division, Numbered, Share, as_sum, divisions, means
from fusedops.declarations import Operator
from fusedops.torch.distributed.joins import Part
from fusedops.torch.library import SIGNATURES, Signature, for_each, overload
from fusedops.torch.shapes import Shaped, infer


@dataclass(frozen=True)
class _Choice:
    """A division over the processes of one mesh dimension; without one, all of them compute the same."""

    division: Division | None
    stride: int | None  # the split factor, if shards are interleaved as those of FSDP2 with tensor parallelism are

    def placement(self, share: Share) -> Placement:
        if share.kind == "part":
            return Shard(share.dim) if self.stride is None else _StridedShard(share.dim, split_factor=self.stride)
        return Replicate() if share == ALL else Partial()


def _divisions(signature: Signature, inputs: Sequence[Any], arguments: Sequence[Any]) -> list[Division]:
    """The divisions of a call whose inputs have a `tensor_meta`, or are absent."""
    shaped = [None if x is None else Shaped(x.tensor_meta.dtype, x.tensor_meta.shape) for x in inputs]
    shapes = [None if x is None else x.shape for x in shaped]
    outputs = [shape for _, shape in infer(signature, (*shaped, *arguments[signature.inputs :]))]
    return divisions(signature.declaration, signature.named_attributes(arguments), shapes, outputs)


@dataclass(frozen=True)
class _SeedOfPart(Partial):
    """The placement of the seed of a part of a call, which has three further numbers in each process. DTensor computes
    it from the replicated seed, as the terms of a sum; it is in no result."""

    numbers: tuple[Any, ...] = ()

    def __init__(self, numbers: tuple[Any, ...]) -> None:
        super().__init__("sum")
        object.__setattr__(self, "numbers", numbers)

    def _partition_value(self, tensor: Tensor, mesh: DeviceMesh, mesh_dim: int) -> Tensor:
        return torch.cat([tensor, _on_device(self.numbers, tensor.device)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SeedOfPart) and self.numbers == other.numbers

    def __hash__(self) -> int:
        return hash((_SeedOfPart, self.numbers))


def _on_device(numbers: tuple[Any, ...], device: torch.device) -> Tensor:
    """Integers in a tensor, which is kept for later calls. Traces and captured CUDA graphs compute it themselves."""
    is_captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if is_captured or _are_we_tracing() or not all(type(n) is int for n in numbers):
        return torch.cat([torch.full((1,), n, dtype=torch.int64, device=device) for n in numbers])
    return _kept(numbers, device)


@functools.lru_cache(maxsize=1024)
def _kept(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, device=device)


def _of_seed(mesh: DeviceMesh, choices: Sequence[_Choice], numbered: Numbered | None) -> tuple[Placement, ...] | None:
    """The placement of a seed, with the places of this process's elements; None if no three numbers have them."""
    dims: dict[int, list[int]] = {}  # of the mesh, by the dimension that they divide
    for i, choice in enumerate(choices):
        if choice.division is not None and mesh.size(i) > 1:
            dims.setdefault(choice.division.numbered_dim, []).append(i)
    placements: list[Placement] = [Replicate() for _ in choices]
    if not dims or numbered is None:
        return tuple(placements)
    if not numbered.allows(list(dims)):
        return None
    offsets, sizes = [0] * len(numbered.shape), list(numbered.shape)
    for dim, mesh_dims in dims.items():
        offsets[dim], sizes[dim] = _bounds(mesh, mesh_dims, sizes[dim])
    placements[min(itertools.chain(*dims.values()))] = _SeedOfPart(numbered.runs(offsets, sizes))
    return tuple(placements)


class _Call:
    """A call of an operator, as DTensor describes it."""

    def __init__(self, signature: Signature, arguments: Sequence[Any]) -> None:
        self.declaration = signature.declaration
        given = signature.padded(arguments)
        self.tensors: list[OpStrategy] = [x for x in given if x is not None]
        self.places = [i for i, x in enumerate(given) if x is not None]
        self.specs = [x.strategies[0].output_spec for x in self.tensors]
        self.mesh = self.specs[0].mesh
        self.divisions = _divisions(signature, given, arguments)

    def choices(self, mesh_dim: int) -> Iterator[_Choice]:
        placements = [spec.placements[mesh_dim] for spec in self.specs]
        strides = dict.fromkeys(p.split_factor for p in placements if isinstance(p, _StridedShard))
        for division in self.divisions:
            has_place = division.place is not None or division.numbered is not None
            for stride in (None,) if has_place else (None, *strides):
                yield _Choice(division, stride)
        yield _Choice(None, None)

    def strategy(self) -> OpStrategy:
        combinations = itertools.product(*(tuple(self.choices(i)) for i in range(self.mesh.ndim)))
        found = [spec for choices in combinations if (spec := self._spec(choices)) is not None]
        if not found:
            names = " and ".join(x.name for x in self.declaration.inputs if x.updated)
            raise ValueError(
                f"fusedops.{self.declaration.function}: {names} must be sharded as the result of the other inputs is, "
                "or replicated; got placements that would need another layout of what is updated in place"
            )
        return OpStrategy(found)

    def _spec(self, choices: Sequence[_Choice]) -> OpSpec | None:
        """All placements with these choices, one for each mesh dimension; None if the call does not allow them."""
        numbered = next((c.division.numbered for c in choices if c.division), None)
        of_seed = _of_seed(self.mesh, choices, numbered)
        if of_seed is None:
            return None
        inputs = []
        for place, tensor, given in zip(self.places, self.tensors, self.specs, strict=True):
            placements = tuple(c.placement(c.division.inputs[place] if c.division else ALL) for c in choices)
            if numbered is not None and place == numbered.seed:
                if not all(p.is_replicate() for p in given.placements) and of_seed != placements:
                    return None  # the numbers would be added before the seed is whole
                placements = of_seed
            is_kept = placements == given.placements
            if not is_kept and (self.declaration.inputs[place].updated or not self._fills(given.shape, placements)):
                return None
            inputs.append(DTensorSpec(self.mesh, placements, tensor_meta=tensor.tensor_meta))
        for division in (c.division for c in choices if c.division):
            if not division.allows(
                math.prod(self.mesh.size(i) for i, c in enumerate(choices) if c.division is division)
            ):
                return None
        outputs = tuple(
            DTensorSpec(self.mesh, tuple(c.placement(c.division.outputs[i] if c.division else ALL) for c in choices))
            for i in range(len(self.declaration.outputs))
        )
        costs = [generate_redistribute_costs(x, spec) for x, spec in zip(self.tensors, inputs, strict=True)]
        return OpSpec(outputs[0] if len(outputs) == 1 else outputs if outputs else None, inputs, costs)

    def _fills(self, shape: Sequence[Any], placements: Sequence[Placement]) -> bool:
        """True if every process has an element along each sharded dimension: no others are worth a redistribution."""
        parts = [1] * len(shape)
        for mesh_dim, placement in enumerate(placements):
            if isinstance(placement, (Shard, _StridedShard)):
                parts[placement.dim] *= self.mesh.size(mesh_dim)
        return all(count == 1 or size >= count for size, count in zip(shape, parts, strict=True))


def _part(signature: Signature, schema: OpSchema, arguments: Sequence[Any]) -> tuple[Part, Any, list[Placement]] | None:
    """The part of a call with these local arguments, along an axis whose parts have a place; and the mesh and the
    placements that stack parts along a first dimension. None for a call that no such axis divides."""
    given = signature.padded(schema.args_schema)
    for division in _divisions(signature, given, schema.args_schema):
        if division.place is None:
            continue
        shares = zip(division.inputs, given, strict=True)
        dim, spec = next((share.dim, x) for share, x in shares if share.kind == "part")
        stacked: list[Placement] = [Shard(0) if p.is_shard(dim) else Replicate() for p in spec.placements]
        mesh_dims = [i for i, p in enumerate(stacked) if p.is_shard()]
        if not mesh_dims:
            continue
        return Part(signature, arguments, division, *_bounds(spec.mesh, mesh_dims, spec.shape[dim])), spec.mesh, stacked
    return None


def _bounds(mesh: DeviceMesh, mesh_dims: Sequence[int], size: Any) -> tuple[Any, Any]:
    """The offset and the size of this process's part of a dimension that these dimensions of the mesh divide."""
    offset = 0
    for mesh_dim in mesh_dims:
        rank = mesh.get_local_rank(mesh_dim)
        size, begin = Shard.local_shard_size_and_offset(size, mesh.size(mesh_dim), rank)
        offset += begin
    return offset, size


def _computed(op: Any, signature: Signature, schema: OpSchema, arguments: Sequence[Any]) -> Any:
    """A call with these local arguments."""
    found = _part(signature, schema, arguments)
    if found is None:
        return op(*arguments)
    part, mesh, stacked = found
    outputs = op(*part.arguments)
    if part.join is None:
        return outputs
    statistics = DTensor.from_local(part.statistics(outputs)[None], mesh, stacked, run_check=False)
    everywhere = statistics.redistribute(placements=[Replicate()] * mesh.ndim)
    return part.results(everywhere.to_local(), outputs)


def _handler(signature: Signature) -> Callable[..., Any]:
    """A function that computes a call as DTensor does, joins the results of parts that have a place, and makes of means
    over shards the mean over all processes."""

    def handle(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        dispatcher = DTensor._op_dispatcher
        info = dispatcher.unwrap_to_op_info(op, args, kwargs)
        dispatcher.sharding_propagator.propagate(info)
        sharding = info.output_sharding
        if sharding.needs_redistribute:
            dispatcher.redistribute_local_args(
                info, sharding.redistribute_schema, sharding.use_val_from_redistribute_schema
            )
        placed = sharding.redistribute_schema if sharding.needs_redistribute else info.schema
        call = signature.declaration, signature.named_attributes(args), signature.padded(args)
        weights = {
            place: weight
            for place, weight in means(*call).items()
            if any(isinstance(p, Partial) for p in sharding.output_spec[weight].placements)
        }
        of_parts = as_sum(*call) if weights else {}
        local_args = signature.replaced(info.local_args, of_parts) if of_parts else info.local_args
        outputs = dispatcher.wrap(_computed(op, signature, placed, local_args), sharding.output_spec)
        if not isinstance(outputs, (tuple, list)):
            return outputs
        joined = list(outputs)
        for place, weight in weights.items():
            joined[place], joined[weight] = _mean(outputs[place], outputs[weight], bool(of_parts))
        return tuple(joined)

    return handle


def _mean(shares: DTensor, weights: DTensor, are_sums: bool) -> tuple[DTensor, DTensor]:
    """The mean over all processes of sums or means over shards, or the shards of its gradient, and the weight of all.

    A shard of weight 0 has the mean NaN, which is the result if all shards are without.
    """
    placements = [Replicate()] * shares.device_mesh.ndim
    weight = weights.redistribute(placements=placements)
    total = weight.to_local()
    if are_sums:
        everywhere = shares.redistribute(placements=placements)
        return DTensor(everywhere._local_tensor / total, everywhere._spec, requires_grad=False), weight
    fraction = torch.where(total == 0, 1.0, weights._local_tensor / total)
    terms = torch.where(fraction == 0, 0.0, shares._local_tensor * fraction)
    scaled = DTensor(terms, shares._spec, requires_grad=False)
    is_sum = any(isinstance(p, Partial) for p in shares.placements)
    return scaled.redistribute(placements=placements) if is_sum else scaled, weight


def _register(operator: Operator) -> None:
    if any(x.kind == "list" for x in operator.inputs):
        return  # optimizers call these with the shards of their process
    signature = SIGNATURES[operator.name]
    needs_handler = any(re.search(r":|@\w+/", declared.tensors) for declared in operator.axes)
    # DTensor's cache compares all arguments from this place on, and of those before it only the tensors. Where several
    # inputs may be absent, it must compare their places. A number in place of a tensor varies, and decides nothing.
    is_ambiguous = sum(x.kind != "tensor" for x in operator.inputs) > 1
    compared = 0 if is_ambiguous else signature.inputs + len(signature.scalars)

    def strategy(schema: OpSchema) -> OpStrategy:
        return _Call(signature, schema.args_schema).strategy()

    op: Any = overload(operator.name)
    register_op_strategy(op, RuntimeSchemaInfo(static_argnum=compared))(strategy)
    if needs_handler:
        DTensor._op_dispatcher._custom_op_handlers[op] = _handler(signature)


for_each(_register)
