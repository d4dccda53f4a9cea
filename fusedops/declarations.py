"""The table of operators as the compiled core declares it, read from a binding's library."""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Input:
    name: str
    kind: str  # "tensor", "optional" or "scalar"
    parameter: bool  # the same for all rows
    only_for: str | None  # the output that it is read for alone


@dataclass(frozen=True)
class Output:
    name: str
    dtype: str  # an input's name, or "compute(<input>)"
    saved: bool


@dataclass(frozen=True)
class Attribute:
    name: str
    type: str  # "float", "int", "bool", "str" or "floats"
    default: Any
    choices: tuple[str, ...] = ()  # all that a "str" may be; empty: anything

    def spelled(self, value: Any) -> str:
        """The value as the core parses it. Doubles keep all their bits."""
        if self.type == "bool":
            return "true" if value else "false"
        if self.type == "float":
            return repr(float(value))
        if self.type == "floats":
            return "[" + ", ".join(repr(float(number)) for number in value) + "]"
        return str(value)


@dataclass(frozen=True)
class GradientOf:
    input: str
    source: str


@dataclass(frozen=True)
class Step:
    """Towards the gradients of an operator's inputs: `Step` in core_cuda/core/declaration/operator.h."""

    op: str | None
    inputs: tuple[str | None, ...]
    gradients: tuple[GradientOf, ...]
    if_wanted: str | None
    negated: str | None


@dataclass(frozen=True)
class Operator:
    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    attributes: tuple[Attribute, ...]
    derivative: tuple[Step, ...]  # none: a formula in fusedops/gradients
    autocast: bool
    batched: bool  # leading dimensions are independent of each other

    @property
    def op_type(self) -> str:
        """What TensorFlow calls it: rms_norm is FusedopsRmsNorm."""
        return "Fusedops" + "".join(part[:1].upper() + part[1:] for part in self.name.split("_"))


def read(library: ctypes.CDLL) -> dict[str, Operator]:
    """Every operator of the library, by name."""
    library.fusedops_describe.restype = ctypes.c_char_p
    rows = json.loads(library.fusedops_describe())
    return {row["name"]: _operator(row) for row in rows}


def _operator(row: dict[str, Any]) -> Operator:
    return Operator(
        name=row["name"],
        inputs=tuple(Input(**item) for item in row["inputs"]),
        outputs=tuple(Output(**item) for item in row["outputs"]),
        attributes=tuple(_attribute(**item) for item in row["attributes"]),
        derivative=tuple(_step(**item) for item in row["derivative"]),
        autocast=row["autocast"],
        batched=row["batched"],
    )


def _step(inputs: list[str | None], gradients: list[dict[str, str]], **rest: Any) -> Step:
    return Step(inputs=tuple(inputs), gradients=tuple(GradientOf(**item) for item in gradients), **rest)


def _attribute(name: str, type: str, default: str, choices: list[str]) -> Attribute:
    return Attribute(name, type, default if type == "str" else json.loads(default), tuple(choices))
