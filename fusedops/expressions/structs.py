"""The C structs of fusedops_define(const Definition*)."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_char_p, c_double, c_int32

from fusedops.expressions import program
from fusedops.expressions.program import Definition

LIKE_ALL, LIKE_ROWS = -1, -2  # program::kLikeAll, kLikeRows


class Instruction(Structure):
    _fields_ = (("op", c_int32), ("a", c_int32), ("b", c_int32), ("c", c_int32), ("value", c_double))


class Reduction(Structure):
    _fields_ = (("kind", c_int32), ("stage", c_int32), ("value", c_int32))


class Result(Structure):
    _fields_ = (("name", c_char_p), ("value", c_int32), ("like", c_int32))


class InputText(Structure):
    _fields_ = (("name", c_char_p), ("kind", c_int32))


class DefinitionStruct(Structure):
    _fields_ = (
        *(("name", c_char_p), ("source", c_char_p)),
        *((count, c_int32) for count in ("inputs", "results", "reductions", "stages")),
        *(("input", POINTER(InputText)), ("result", POINTER(Result)), ("reduction", POINTER(Reduction))),
        *(("stage_size", POINTER(c_int32)), ("code", POINTER(Instruction)), ("needs", c_int32)),
        *(("backward", c_char_p), ("gradients", POINTER(c_char_p))),
    )


def _like(result: program.Result) -> int:
    if result.like is not None:
        return result.like
    return LIKE_ROWS if result.of_rows else LIKE_ALL


def packed(definition: Definition) -> DefinitionStruct:
    """The C struct of a definition. It keeps alive what its pointers point to."""
    found = definition.program
    inputs = [InputText(input.name.encode(), input.kind) for input in definition.inputs]
    results = [Result(result.name.encode(), result.value, _like(result)) for result in definition.results]
    reductions = [Reduction(x.kind, x.stage, x.value) for x in found.reductions]
    code = [Instruction(i.op, i.a, i.b, i.c, i.value) for stage in found.stages for i in stage]
    # The second derivative is added on first use: registry.py.
    backward = definition.backward() if definition.backward_name and not definition.needs else None
    gradients = [result.name.encode() for result in backward.results] if backward else []
    return DefinitionStruct(
        definition.name.encode(),
        definition.source.encode(),
        len(inputs),
        len(results),
        len(reductions),
        len(found.stages),
        (InputText * len(inputs))(*inputs),
        (Result * len(results))(*results),
        (Reduction * len(reductions))(*reductions),
        (c_int32 * len(found.stages))(*map(len, found.stages)),
        (Instruction * len(code))(*code),
        definition.needs,
        backward.name.encode() if backward else None,
        (c_char_p * len(gradients))(*gradients),
    )
