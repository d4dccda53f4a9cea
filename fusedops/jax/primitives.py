"""One primitive of JAX for each operator.

A primitive takes the tensors of a call, without absent ones, and returns the operator's outputs and the new values of
its mutated inputs. Its parameters are the number of tensors of each input, and the texts of the attributes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.interpreters.mlir import ir

from fusedops import inference
from fusedops.axes import is_batched
from fusedops.declarations import Input, Operator
from fusedops.jax import internals, library, sharding
from fusedops.jax.library import LIBRARY, TABLE, TARGET, for_each

PRIMITIVES: dict[str, Primitive] = {}


@dataclass(frozen=True)
class Call:
    """The parameters of a primitive."""

    name: str  # the operator's
    counts: tuple[int, ...]  # the number of tensors of each input
    texts: tuple[str, ...]  # the attributes

    @property
    def operator(self) -> Operator:
        return TABLE[self.name]

    @property
    def parameters(self) -> dict[str, Any]:
        return {"counts": self.counts, "texts": self.texts}

    @property
    def attributes(self) -> dict[str, Any]:
        return {a.name: a.read(text) for a, text in zip(self.operator.attributes, self.texts, strict=True)}

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the inputs that are present; for an operator without lists, one for each tensor."""
        return tuple(x.name for x, count in zip(self.operator.inputs, self.counts, strict=True) if count)

    def replaced(self, texts: Mapping[str, str]) -> Call:
        """The call with other values of these attributes."""
        named = dict(zip([a.name for a in self.operator.attributes], self.texts, strict=True))
        return replace(self, texts=tuple({**named, **texts}.values()))

    def by_input(self, tensors: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """The tensors of each input."""
        rest = iter(tensors)
        for count in self.counts:
            yield [next(rest) for _ in range(count)]

    def optional(self, values: Sequence[Any]) -> list[Any]:
        """The value of each input, for an operator without lists; None for an absent one."""
        return [items[0] if items else None for items in self.by_input(values)]

    @property
    def mutated(self) -> tuple[int, ...]:
        """The places of the mutated tensors."""
        places = self.by_input(range(sum(self.counts)))
        return tuple(p for x, items in zip(self.operator.inputs, places, strict=True) if x.updated for p in items)

    def overwritten(self, tensors: Sequence[Shaped], outputs: Sequence[Shaped]) -> dict[int, int]:
        """The outputs that may overwrite a tensor, by its place."""
        places = dict(zip((x.name for x in self.operator.inputs), self.by_input(range(len(tensors))), strict=True))
        return {
            place: i
            for i, (y, shape) in enumerate(zip(self.operator.outputs, outputs, strict=True))
            for place in places.get(y.overwrites or "", ())
            if tensors[place] == shape and 0 not in shape[1]
        }


Shaped = tuple[Any, tuple[int, ...]]  # a dtype and a shape


def _words(call: Call, tensors: Sequence[Shaped]) -> list[int]:
    found: list[int] = []
    for items in call.by_input(tensors):
        found.append(len(items))
        for dtype, shape in items:
            found += library.words(dtype, shape)
    return found


@functools.lru_cache(maxsize=4096)
def infer(call: Call, tensors: tuple[Shaped, ...], has_int64: bool) -> tuple[Shaped, ...]:
    """The dtypes and shapes of the outputs. `has_int64` is part of the key.

    Raises ValueError with the core's error message if it refuses the inputs.
    """
    for _, shape in tensors:
        if not all(isinstance(size, int) for size in shape):
            raise ValueError(f"fusedops.{call.operator.function}: shapes must be known; got {shape}")
    answer = inference.infer(LIBRARY, call.operator, _words(call, tensors), call.texts)
    if isinstance(answer, bytes):
        raise ValueError(answer.decode())
    rest = iter(answer[1:])  # without symbols there are no equalities
    outputs = []
    for _ in call.operator.outputs:
        dtype, rank = library.DTYPES[next(rest)], next(rest)
        outputs.append(library.tensor(dtype, tuple(next(rest) for _ in range(rank))))
    return tuple(outputs)


def shaped(x: Any) -> Shaped:
    return x.dtype, tuple(x.shape)


def _divided(call: Call, tensors: Sequence[Any], outputs: Sequence[tuple[int, ...]]) -> sharding.Divided:
    inputs = [*call.by_input([library.shape(x) for x in tensors])]
    return sharding.Divided(call.operator, call.attributes, [x.shape for x in tensors], inputs, outputs)


def _shardings(call: Call, tensors: Sequence[Any], outputs: Sequence[Shaped]) -> list[jax.sharding.NamedSharding]:
    """The shardings of the inputs and results of a call on abstract values whose types have shardings."""
    divided = _divided(call, tensors, [shape for _, shape in outputs])
    mesh = next(x.sharding.mesh for x in tensors if sharding.is_typed([x]))
    chosen = divided.choose(mesh, [x.sharding.spec for x in tensors])
    return [jax.sharding.NamedSharding(mesh, spec) for spec in divided.specs(chosen)]


def _resharded(call: Call, tensors: Sequence[Any]) -> Sequence[Any]:
    """The tensors with the shardings of the call's parts, if their types have shardings.

    Derivatives of a gathered tensor are those of the gathering, so that their types are right.
    """
    if all(type(getattr(x, "sharding", None)) is jax.sharding.SingleDeviceSharding for x in tensors):
        return tensors  # typeof takes longer
    avals = [*map(jax.typeof, tensors)]
    if not sharding.is_typed(avals):
        return tensors
    shardings = _shardings(call, avals, infer(call, tuple(map(shaped, avals)), library.has_int64()))
    return [
        x if aval.sharding.spec == wanted.spec else jax.sharding.reshard(x, wanted)
        for x, aval, wanted in zip(tensors, avals, shardings, strict=False)
    ]


def _abstract_evaluation(operator: Operator) -> Callable[..., Any]:
    def evaluate(*tensors: Any, counts: Any, texts: Any) -> list[Any]:
        call = Call(operator.name, counts, texts)
        outputs = infer(call, tuple(map(shaped, tensors)), library.has_int64())
        results = [*outputs, *(shaped(tensors[place]) for place in call.mutated)]
        specs: Sequence[Any] = [()] * len(results)
        if sharding.is_typed(tensors):
            specs = [x.spec for x in _shardings(call, tensors, outputs)[len(tensors) :]]
        return [internals.abstract_beside(tensors, *x, spec) for x, spec in zip(results, specs, strict=True)]

    return evaluate


def _lowering(operator: Operator, cuda: bool) -> Callable[..., Any]:
    def lower(ctx: Any, *operands: Any, counts: Any, texts: Any) -> Any:
        call = Call(operator.name, counts, texts)
        count = len(operator.outputs)
        if sharding.is_partitioned(ctx):
            divided = _divided(call, ctx.avals_in, [aval.shape for aval in ctx.avals_out[:count]])
            whole, part = (
                functools.partial(PRIMITIVES[operator.name].bind, **each.parameters)
                for each in (call, call.replaced(divided.of_parts))
            )
            return mlir.lower_fun(divided.function(whole, part), multiple_results=True)(ctx, *operands)
        avals, mutated = ctx.avals_out[:count], ctx.avals_out[count:]
        inputs, outputs = [*map(shaped, ctx.avals_in)], [*map(shaped, avals)]
        bytes = _workspace(call, inputs, outputs, cuda)
        names = [a.name for a in operator.attributes]
        lowered = jax.ffi.ffi_lowering(
            TARGET,
            backend_config={
                "op": ir.StringAttr.get(operator.name),
                "counts": ir.DenseI64ArrayAttr.get(counts),
                "attributes": ir.DictAttr.get(dict(zip(names, map(ir.StringAttr.get, texts), strict=True))),
            },
            # XLA copies an operand first if it is read later, or is an argument of the program.
            operand_output_aliases=call.overwritten(inputs, outputs)
            | {source: count + 1 + i for i, source in enumerate(call.mutated)},
        )
        # The workspace is one more result, between the outputs and the mutated inputs.
        results = lowered(
            ctx.replace(avals_out=[*avals, jax.core.ShapedArray((bytes,), np.uint8), *mutated]), *operands
        )
        return [*results[:count], *results[count + 1 :]]

    return lower


def _workspace(call: Call, inputs: Sequence[Shaped], outputs: Sequence[Shaped], cuda: bool) -> int:
    of_outputs = [word for x in outputs for word in library.words(*x)]
    given = inference.integers(_words(call, inputs)), inference.texts(call.texts)
    return int(LIBRARY.fusedops_jax_workspace(call.name.encode(), *given, inference.integers(of_outputs), cuda))


def _batching(operator: Operator) -> Callable[..., Any]:
    """One call if the operator treats all leading dimensions alike, otherwise a loop."""

    def batch(tensors: Sequence[Any], dims: Sequence[int | None], *, counts: Any, texts: Any) -> Any:
        call = Call(operator.name, counts, texts)
        run = functools.partial(PRIMITIVES[operator.name].bind, **call.parameters)
        moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(tensors, dims, strict=True)]
        is_mapped = [d is not None for d in dims]
        single = tuple((x.dtype, x.shape[mapped:]) for x, mapped in zip(moved, is_mapped, strict=True))
        if operator.has_effects_or_lists or not _is_foldable(call, single, is_mapped):
            found = _loop(call, tuple(itertools.compress(range(len(moved)), is_mapped)), moved)
            return found, [0] * len(found)
        # The additional dimension can make inputs valid that a single call refuses, such as scalars.
        outputs = infer(call, single, library.has_int64())
        size = next(itertools.compress(moved, is_mapped)).shape[0]
        shared = [_is_shared(x) for x, count in zip(operator.inputs, counts, strict=True) if count]
        results = run(
            *(
                x if mapped or alone else jnp.broadcast_to(x, (size, *x.shape))
                for x, mapped, alone in zip(moved, is_mapped, shared, strict=True)
            )
        )
        # An output that is not needed is empty, has one dimension, and is not mapped.
        return results, [0 if y.ndim > len(shape) else None for y, (_, shape) in zip(results, outputs, strict=True)]

    return batch


@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)  # JAX would compile an eager loop anew for each call
def _loop(call: Call, places: tuple[int, ...], tensors: Sequence[Any]) -> list[Any]:
    names = jax.typeof(tensors[places[0]]).sharding.spec[0]
    whole = [sharding.first_along(tensors[i], None) for i in places]  # lax.map refuses others
    found = jax.lax.map(lambda given: bind(call, replaced(tensors, places, given)), whole)
    return [sharding.first_along(y, names) for y in found]


def _is_shared(x: Input) -> bool:
    return x.parameter or x.kind == "scalar"


def _is_foldable(call: Call, single: Sequence[Shaped], is_mapped: Sequence[bool]) -> bool:
    """True if a mapped dimension can be one more leading dimension of the inputs that have rows."""
    given = [x for x, count in zip(call.operator.inputs, call.counts, strict=True) if count]
    ranks = [len(shape) for _, shape in single]
    of_rows = {rank for x, rank in zip(given, ranks, strict=True) if not _is_shared(x)}
    if not is_batched(call.operator, call.attributes, call.optional(single)) or len(of_rows) != 1:
        return False
    # A scalar input of higher rank would be broadcast along the mapped dimension.
    highest = max([0, *(rank for x, rank in zip(given, ranks, strict=True) if x.kind == "scalar")])
    return highest <= max(of_rows) and not any(map(_is_shared, itertools.compress(given, is_mapped)))


def replaced(values: Sequence[Any], places: Sequence[int], others: Sequence[Any]) -> list[Any]:
    """The values, with others at these places."""
    return [*(dict(enumerate(values)) | dict(zip(places, others, strict=True))).values()]


def bind(call: Call, tensors: Sequence[Any]) -> list[Any]:
    found: list[Any] = PRIMITIVES[call.name].bind(*_resharded(call, internals.varying(tensors)), **call.parameters)
    return found


def _register(operator: Operator) -> None:
    primitive = PRIMITIVES[operator.name] = Primitive(f"fusedops_{operator.name}")
    primitive.multiple_results = True
    internals.needs_devices(primitive)
    internals.compiles_eager_calls(primitive)
    primitive.def_abstract_eval(_abstract_evaluation(operator))
    for platform, cuda in {"cpu": False, "cuda": True}.items():
        mlir.register_lowering(primitive, _lowering(operator, cuda), platform=platform)
    batching.primitive_batchers[primitive] = _batching(operator)


for_each(_register)
