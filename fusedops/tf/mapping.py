"""`tf.vectorized_map`, and with it `tape.jacobian`: one call, where an operator treats all leading dimensions alike.

TensorFlow would call every operator that it does not know in a loop, with a warning, and cannot differentiate that loop
under XLA. Its table of converters is not public API: where that is not found, the loop remains.
"""

from __future__ import annotations

from typing import Any

from fusedops.axes import is_batched
from fusedops.declarations import Operator
from fusedops.tf.internals import converted, converted_by_loop, new_operation, register_converter
from fusedops.tf.library import decoded, for_each


def _register(operator: Operator) -> None:
    if operator.has_effects_or_lists:
        return  # TensorFlow calls it in a loop
    scalars = {x.name for x in operator.inputs if x.kind == "scalar"}
    shared = scalars.union(x.name for x in operator.inputs if x.parameter)

    @register_converter(operator.type)
    def convert(call: Any) -> Any:
        """An input of `call` is stacked along a new first dimension, or the same for all."""
        names = [x.name for x in operator.inputs if x.kind != "optional" or call.get_attr(f"N_{x.name}") == 1]
        all_ranks = [_rank(call.input(i)) for i in range(len(names))]
        rows = [i for i, name in enumerate(names) if name not in shared]
        ranks = {all_ranks[i] for i in rows}
        # A further dimension can make inputs valid that a single call refuses, such as a mask of one rank more. Where
        # all ranks are known, the rule has checked those of a single call when it was traced.
        attributes = {a.name: decoded(a, call.get_attr(a.name)) for a in operator.attributes}
        given = [x.name if x.name in names else None for x in operator.inputs]
        foldable = is_batched(operator, attributes, given) and len(ranks) == 1 and min(all_ranks) >= 0
        foldable = foldable and not any(call.input(i).is_stacked for i in range(len(names)) if i not in rows)
        # A scalar of more dimensions, which some rows broadcast, would meet the stacked one.
        of_scalars = [all_ranks[i] for i, name in enumerate(names) if name in scalars]
        if not foldable or not all(rank <= max(ranks) for rank in of_scalars):
            return converted_by_loop(call)
        call.stack_inputs(rows)
        dtypes = [output.dtype for output in call.outputs]
        made = new_operation(call.op_type, [x.t for x in call.inputs], dtypes, call.op.node_def.attr)
        # An output that is not needed has no elements and one dimension, however many calls there are.
        return [converted(y, y.shape.rank > one.shape.rank) for y, one in zip(made.outputs, call.outputs, strict=True)]


def _rank(input: Any) -> int:
    """The rank of an input of a single call, or less than 0 if it is not known."""
    rank = input.t.shape.rank
    return -1 if rank is None else int(rank - input.is_stacked)


if register_converter is not None:
    for_each(_register)
