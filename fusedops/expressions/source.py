"""Writes a program as C++ over the functions that core_cuda declares for it. A stage works on one element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusedops.expressions.graph import COMPARISONS, OPERATIONS, ROWS

if TYPE_CHECKING:
    from fusedops.expressions.program import Definition, Instruction

KINDS = tuple(f"k{name.removeprefix('row_').capitalize()}" for name in ROWS)  # kSum, kMean and so on
_FUSED = {"fma": "fma_({a}, {b}, {c})", "fms": "fma_({a}, {b}, -{c})", "fnma": "fma_(-{a}, {b}, {c})"}
_TWO = ("add", "sub", "mul", "div", "min", "max", "pow")
_INPUTS = "const A (&x)[kInputs], const A (&r)[kReductions + 1]"


def source(definition: Definition) -> str:
    program = definition.program
    stages = len(program.stages) - 1
    reductions = ", ".join(f"{{{KINDS[r.kind]}, {r.stage}}}" for r in program.reductions) or "{kSum, 0}"
    lines = [
        f"// {definition.name}",
        f"// x: {', '.join(input.name for input in definition.inputs)}",
        f"// y: {', '.join(result.name for result in definition.results)}",
        "struct Program {",
        f"  static constexpr int kInputs = {len(definition.inputs)}, kOutputs = {len(definition.results)},",
        f"                       kReductions = {len(program.reductions)}, kStages = {stages};",
        f"  static constexpr Reduction kReduction[] = {{{reductions}}};",
        "  template <int kStage, class A>",
        f"  FN static void terms({_INPUTS}, A (&t)[kReductions + 1]) {{",
    ]
    for stage in range(stages):
        targets = [(f"t[{i}]", r.value) for i, r in enumerate(program.reductions) if r.stage == stage]
        lines += [f"    if constexpr (kStage == {stage}) {{", *_body(program.stages[stage], targets, 6), "    }"]
    targets = [(f"y[{i}]", value) for i, value in enumerate(program.values)]
    lines += [
        "  }",
        "  template <class A>",
        f"  FN static void outputs({_INPUTS}, A (&y)[kOutputs]) {{",
        *_body(program.stages[-1], targets, 4),
        "  }",
        "};",
    ]
    return "\n".join(lines) + "\n"


def _body(code: Sequence[Instruction], targets: Sequence[tuple[str, int]], indent: int) -> list[str]:
    lines, names = list[str](), list[str]()
    for instruction in code:
        op = OPERATIONS[instruction.op]
        if op == "input":
            names.append(f"x[{instruction.a}]")
        elif op == "reduced":
            names.append(f"r[{instruction.a}]")
        elif op == "constant":
            names.append(_constant(instruction.value))
        else:
            text = _operation(op, [names[operand] for operand in (instruction.a, instruction.b, instruction.c)])
            names.append(f"v{len(lines)}")
            lines.append(f"const A {names[-1]} = {text};")
    lines += [f"{target} = {names[value]};" for target, value in targets]
    return [" " * indent + line for line in lines]


def _operation(op: str, operands: Sequence[str]) -> str:
    a, b, c = operands
    if op == "neg":
        return f"-{a}"
    if op in COMPARISONS:
        return f"A({a} {COMPARISONS[op]} {b})"
    if op == "where":
        return f"where_({a}, {b}, {c})"
    if op in _FUSED:
        return _FUSED[op].format(a=a, b=b, c=c)
    return f"{op}_({a}, {b})" if op in _TWO else f"{op}_({a})"


def _constant(value: float) -> str:
    if math.isnan(value):
        return "A(NAN)"
    if math.isinf(value):
        return "A(INFINITY)" if value > 0 else "A(-INFINITY)"
    digits, _, exponent = value.hex().partition("p")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return f"A({digits}p{exponent})"
