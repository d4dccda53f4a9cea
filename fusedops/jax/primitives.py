"""One primitive of JAX for each operator.

A primitive takes the tensors of a call, without absent ones, and returns the operator's outputs and the new values of
its mutated inputs. Its parameters are the number of tensors of each input, and the texts of the attributes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.interpreters.mlir import ir

from fusedops import inference
from fusedops.axes import is_batched
from fusedops.declarations import Operator
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
            raise ValueError(f"fusedops.{call.name}: shapes must be known; got {shape}")
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
    inputs = call.optional([tuple(x.shape) for x in tensors])
    return sharding.Divided(call.operator, call.attributes, inputs, outputs)


def _abstract_evaluation(operator: Operator) -> Callable[..., Any]:
    def evaluate(*tensors: Any, counts: Any, texts: Any) -> list[Any]:
        call = Call(operator.name, counts, texts)
        outputs = infer(call, tuple(map(shaped, tensors)), library.has_int64())
        specs: Sequence[Any] = [()] * len(outputs)
        if not operator.has_effects_or_lists and sharding.is_typed(tensors):
            divided = _divided(call, tensors, [shape for _, shape in outputs])
            chosen = divided.choose(tensors[0].sharding.mesh, [x.sharding.spec for x in tensors])
            specs = divided.specs(chosen)[divided.count :]
        made = [internals.abstract_beside(tensors[0], *x, spec) for x, spec in zip(outputs, specs, strict=True)]
        return [*made, *(tensors[place] for place in call.mutated)]

    return evaluate


def _lowering(operator: Operator, cuda: bool) -> Callable[..., Any]:
    def lower(ctx: Any, *operands: Any, counts: Any, texts: Any) -> Any:
        call = Call(operator.name, counts, texts)
        if not operator.has_effects_or_lists and sharding.is_partitioned(ctx):
            divided = _divided(call, ctx.avals_in, [aval.shape for aval in ctx.avals_out])
            whole = functools.partial(PRIMITIVES[operator.name].bind, **call.parameters)
            return mlir.lower_fun(divided.function(whole), multiple_results=True)(ctx, *operands)
        count = len(operator.outputs)
        avals, mutated = ctx.avals_out[:count], ctx.avals_out[count:]
        bytes = _workspace(call, [*map(shaped, ctx.avals_in)], [*map(shaped, avals)], cuda)
        names = [a.name for a in operator.attributes]
        lowered = jax.ffi.ffi_lowering(
            TARGET,
            backend_config={
                "op": ir.StringAttr.get(operator.name),
                "counts": ir.DenseI64ArrayAttr.get(counts),
                "attributes": ir.DictAttr.get(dict(zip(names, map(ir.StringAttr.get, texts), strict=True))),
            },
            operand_output_aliases={source: count + 1 + i for i, source in enumerate(call.mutated)},
        )
        # The workspace is one more result, between the outputs and the mutated inputs.
        results = lowered(
            ctx.replace(avals_out=[*avals, jax.core.ShapedArray((bytes,), np.uint8), *mutated]), *operands
        )
        return [*results[:count], *results[count + 1 :]]

    return lower


def _workspace(call: Call, inputs: Sequence[Shaped], outputs: Sequence[Shaped], cuda: bool) -> int:
    of_outputs = [word for x in outputs for word in library.words(*x)]
    bytes: int = LIBRARY.fusedops_jax_workspace(
        call.name.encode(),
        inference.integers(_words(call, inputs)),
        inference.texts(call.texts),
        inference.integers(of_outputs),
        cuda,
    )
    return bytes


def _batching(operator: Operator) -> Callable[..., Any]:
    """One call if the operator treats all leading dimensions alike, otherwise a loop."""
    shared = [x.parameter or x.kind == "scalar" for x in operator.inputs]

    def batch(tensors: Sequence[Any], dims: Sequence[int | None], *, counts: Any, texts: Any) -> Any:
        call = Call(operator.name, counts, texts)
        bind = functools.partial(PRIMITIVES[operator.name].bind, **call.parameters)
        if operator.has_effects_or_lists or not is_foldable(call, tensors, dims):
            loop = jax.lax.map(
                _of_mapped(bind, tensors, dims),
                [jax.numpy.moveaxis(x, d, 0) for x, d in zip(tensors, dims, strict=True) if d is not None],
            )
            return loop, [0] * len(loop)
        # The additional dimension can make inputs valid that a single call refuses, such as scalars.
        single = infer(call, tuple(map(_single, tensors, dims)), library.has_int64())
        size = next(x.shape[d] for x, d in zip(tensors, dims, strict=True) if d is not None)
        is_shared = [flag for flag, count in zip(shared, counts, strict=True) for _ in range(count)]
        moved = [
            x if alone else jax.numpy.broadcast_to(x, (size, *x.shape)) if d is None else jax.numpy.moveaxis(x, d, 0)
            for x, d, alone in zip(tensors, dims, is_shared, strict=True)
        ]
        results = bind(*moved)
        # An output that is not needed is empty, has one dimension, and is not mapped.
        places = [0 if y.ndim > len(shape) else None for y, (_, shape) in zip(results, single, strict=True)]
        return results, places

    def is_foldable(call: Call, tensors: Sequence[Any], dims: Sequence[int | None]) -> bool:
        inputs = call.optional(tensors)
        if not is_batched(operator, call.attributes, inputs):
            return False
        ranks = [None if x is None else len(x[1]) for x in call.optional([*map(_single, tensors, dims)])]
        mapped = {rank for rank, alone in zip(ranks, shared, strict=True) if not alone and rank is not None}
        of_shared = [d for d, alone in zip(call.optional(dims), shared, strict=True) if alone]
        # A scalar input of higher rank would be broadcast along the mapped dimension.
        scalars = [rank or 0 for rank, x in zip(ranks, operator.inputs, strict=True) if x.kind == "scalar"]
        return len(mapped) == 1 and not any(d is not None for d in of_shared) and max([0, *scalars]) <= max(mapped)

    return batch


def _single(x: Any, dim: int | None) -> Shaped:
    """The dtype and shape of a tensor in one of the mapped calls."""
    shape = list(x.shape)
    if dim is not None:
        del shape[dim]
    return x.dtype, tuple(shape)


def _of_mapped(bind: Callable[..., Any], tensors: Sequence[Any], dims: Sequence[int | None]) -> Callable[..., Any]:
    """The call as a function of its mapped tensors."""

    def call(mapped: Sequence[Any]) -> Any:
        rest = iter(mapped)
        return bind(*(x if d is None else next(rest) for x, d in zip(tensors, dims, strict=True)))

    return call


@functools.lru_cache(maxsize=4096)
def _compiled(call: Call) -> Callable[..., Any]:
    """An eager call."""
    return jax.jit(functools.partial(PRIMITIVES[call.name].bind, **call.parameters))


def bind(call: Call, tensors: Sequence[Any]) -> list[Any]:
    found: list[Any] = PRIMITIVES[call.name].bind(*internals.varying(tensors), **call.parameters)
    return found


def _register(operator: Operator) -> None:
    primitive = PRIMITIVES[operator.name] = Primitive(f"fusedops_{operator.name}")
    primitive.multiple_results = True
    internals.needs_devices(primitive)
    primitive.def_impl(lambda *tensors, counts, texts: _compiled(Call(operator.name, counts, texts))(*tensors))
    primitive.def_abstract_eval(_abstract_evaluation(operator))
    for platform, cuda in {"cpu": False, "cuda": True}.items():
        mlir.register_lowering(primitive, _lowering(operator, cuda), platform=platform)
    batching.primitive_batchers[primitive] = _batching(operator)


for_each(_register)
