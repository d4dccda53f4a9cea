"""torch.vmap: one call if the operator treats all leading dimensions alike, otherwise a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusedops.axes import is_batched
from fusedops.declarations import Operator
from fusedops.torch import internals
from fusedops.torch.library import SIGNATURES, Signature, for_each, overload
from fusedops.torch.shapes import Shaped, infer


def _padded(x: torch.Tensor, dim: int) -> torch.Tensor:
    """x with one slice of zeros appended to a dimension."""
    shape = list(x.shape)
    shape[dim] = 1
    return torch.cat([x, x.new_zeros(shape)], dim)


def _single(x: torch.Tensor | None, dim: int | None) -> Shaped | None:
    """The dtype and shape of an input in one of the mapped calls."""
    if x is None:
        return None
    shape = list(x.shape)
    if dim is not None:
        del shape[dim]
    return Shaped(x.dtype, shape)


def _rule(signature: Signature, op: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """The function that maps `op(*inputs, *rest)` over a dimension of some of its inputs."""

    declaration = signature.declaration
    shared = {i for i, x in enumerate(declaration.inputs) if x.kind == "scalar" or x.parameter}

    def fold(
        size: int, dims: Sequence[int | None], inputs: Sequence[Any], single: Sequence[Any], rest: Sequence[Any]
    ) -> tuple[Any, Any]:
        """One call with the mapped dimension first.

        `infer` checks the inputs of a single call first: the additional dimension can make inputs valid that a single
        call refuses, such as scalars.
        """
        outputs = infer(signature, (*single, *rest))
        moved = [
            x if i in shared or x is None else x.expand(size, *x.shape) if d is None else x.movedim(d, 0)
            for i, (x, d) in enumerate(zip(inputs, dims, strict=True))
        ]
        results = op(*moved, *rest)
        if isinstance(results, torch.Tensor):
            return results, 0
        # An output that is not needed is empty, has one dimension, and is not mapped.
        places = (0 if y.dim() > len(shape) else None for y, (_, shape) in zip(results, outputs, strict=True))
        return results, tuple(places)

    def loop(size: int, dims: Sequence[int | None], inputs: Sequence[Any], rest: Sequence[Any]) -> tuple[Any, Any]:
        if size == 0:  # a call on zeros gives shapes and dtypes
            padded = [x if d is None else _padded(x, d) for x, d in zip(inputs, dims, strict=True)]
            results, places = loop(1, dims, padded, rest)
            return internals.tree_map(lambda y: y[:0], results), places
        results = [
            op(*(x if d is None else x.select(d, i) for x, d in zip(inputs, dims, strict=True)), *rest)
            for i in range(size)
        ]
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results), 0
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])

    def rule(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        inputs, rest = signature.padded(arguments), arguments[signature.inputs :]
        dims = signature.padded(dims)
        single = [_single(x, d) for x, d in zip(inputs, dims, strict=True)]
        ranks = [None if x is None else len(x.shape) for x in single]
        mapped = {rank for i, rank in enumerate(ranks) if i not in shared and rank is not None}
        batched = is_batched(declaration, signature.named_attributes(arguments), inputs)
        foldable = batched and len(mapped) == 1 and all(dims[i] is None for i in shared)
        # A scalar input of higher rank would be broadcast along the mapped dimension.
        foldable = foldable and all((ranks[i] or 0) <= max(mapped) for i in signature.scalars)
        if foldable:
            return fold(info.batch_size, dims, inputs, single, rest)
        return loop(info.batch_size, dims, inputs, rest)

    return rule


def _register(operator: Operator) -> None:
    if operator.has_effects_or_lists:
        return  # torch refuses to map it
    name = operator.name
    torch.library.register_vmap(f"fusedops::{name}", _rule(SIGNATURES[name], overload(name)))


for_each(_register)
