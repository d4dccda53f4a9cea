"""torch.vmap: one call, where an operator treats all leading dimensions alike, else a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusedops.declarations import Operator
from fusedops.torch import internals
from fusedops.torch.library import SIGNATURES, Signature, for_each, overload


def _padded(x: torch.Tensor, dim: int) -> torch.Tensor:
    """With zeros at the end of a dimension."""
    shape = list(x.shape)
    shape[dim] = 1
    return torch.cat([x, x.new_zeros(shape)], dim)


def _rule(signature: Signature, op: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """How `op(*inputs, *rest)` maps over a dimension of some of its inputs."""

    shared = {i for i, x in enumerate(signature.declaration.inputs) if x.kind == "scalar" or x.parameter}
    attributes = [x.name for x in signature.declaration.attributes]
    needs = [f"need_{x.name}" for x in signature.declaration.outputs]

    def fold(size: int, dims: Sequence[int | None], inputs: Sequence[Any], rest: Sequence[Any]) -> tuple[Any, Any]:
        """One call with the mapped dimension first, where the operator treats leading dimensions alike."""
        moved = [
            x if i in shared or x is None else x.expand(size, *x.shape) if d is None else x.movedim(d, 0)
            for i, (x, d) in enumerate(zip(inputs, dims, strict=True))
        ]
        results = op(*moved, *rest)
        if isinstance(results, torch.Tensor):
            return results, 0
        given = dict(zip(attributes, signature.attributes(tuple(rest)), strict=True))
        # An output that is not needed has no elements and one dimension, however many calls there are.
        return results, tuple(0 if given.get(need, True) else None for need in needs)

    def loop(size: int, dims: Sequence[int | None], inputs: Sequence[Any], rest: Sequence[Any]) -> tuple[Any, Any]:
        if size == 0:  # shapes and dtypes are those of a call on zeros, of which nothing is kept
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
        ranks = {
            x.dim() - (d is not None)
            for i, (x, d) in enumerate(zip(inputs, dims, strict=True))
            if i not in shared and x is not None
        }
        foldable = signature.declaration.batched and len(ranks) == 1 and all(dims[i] is None for i in shared)
        # A scalar of more dimensions, which some rows broadcast, would meet the mapped one.
        foldable = foldable and all(inputs[i] is None or inputs[i].dim() <= max(ranks) for i in signature.scalars)
        return (fold if foldable else loop)(info.batch_size, dims, inputs, rest)

    return rule


def _register(row: Operator) -> None:
    if row.has_effects_or_lists:
        return  # torch refuses to map it
    for name in (row.name, f"_{row.name}"):
        torch.library.register_vmap(f"fusedops::{name}", _rule(SIGNATURES[row.name], overload(name)))


for_each(_register)
