"""`tf.vectorized_map`, and with it `tape.jacobian`: one call if an operator treats all leading dimensions alike.

TensorFlow would call an unknown operator in a loop, with a warning, and cannot differentiate that loop under XLA. Its
table of converters is private. Where it is not found, the loop remains.
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
        """Each input of `call` is stacked along a new first dimension, or shared by all calls."""
        names = [x.name for x in operator.inputs if x.kind != "optional" or call.get_attr(f"N_{x.name}") == 1]
        all_ranks = [_rank(call.input(i)) for i in range(len(names))]
        mapped = [i for i, name in enumerate(names) if name not in shared]
        ranks = {all_ranks[i] for i in mapped}
        # One more dimension can make inputs valid that a single call refuses, such as a mask of one rank more. Where
        # all ranks are known, `infer` has checked a single call's when it was traced.
        attributes = {a.name: decoded(a, call.get_attr(a.name)) for a in operator.attributes}
        given = [x.name if x.name in names else None for x in operator.inputs]
        foldable = is_batched(operator, attributes, given) and len(ranks) == 1 and min(all_ranks) >= 0
        foldable = foldable and not any(call.input(i).is_stacked for i in range(len(names)) if i not in mapped)
        # A scalar input of higher rank would broadcast along the stacked dimension.
        of_scalars = [all_ranks[i] for i, name in enumerate(names) if name in scalars]
        if not foldable or not all(rank <= max(ranks) for rank in of_scalars):
            return converted_by_loop(call)
        call.stack_inputs(mapped)
        dtypes = [output.dtype for output in call.outputs]
        made = new_operation(call.op_type, [x.t for x in call.inputs], dtypes, call.op.node_def.attr)
        # An output that is not needed is empty and has one dimension, for any number of calls.
        return [converted(y, y.shape.rank > one.shape.rank) for y, one in zip(made.outputs, call.outputs, strict=True)]


def _rank(input: Any) -> int:
    """The rank of an input in a single call; negative if it is unknown."""
    rank = input.t.shape.rank
    return -1 if rank is None else int(rank - input.is_stacked)


if register_converter is not None:
    for_each(_register)
