"""What the compiled core declares, read from a binding's library: the table of operators, and what calls of it need."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Input:
    name: str
    kind: str  # "tensor", "optional", "scalar" or "list"
    parameter: bool  # the same for all rows
    updated: bool  # written in place: in TensorFlow, variables
    only_for: str | None  # the output that it is read for alone


@dataclass(frozen=True)
class Output:
    name: str
    dtype: str  # an input's name, "compute(<input>)", or the name of an attribute that says it
    saved: bool
    padded: bool  # on a GPU, rows of 16 bits begin at multiples of 16 bytes


@dataclass(frozen=True)
class Bounds:
    """The range of a number: `Bounds` in core_cuda/core/declaration/signature.h. The core checks it."""

    least: float
    most: float
    is_open: bool  # `most` itself is outside


@dataclass(frozen=True)
class Attribute:
    name: str
    type: str  # "float", "int", "bool", "str" or "floats"
    default: Any
    choices: tuple[str, ...] = ()  # all that a "str" may be; empty: anything
    bounds: Bounds | None = None  # of a number, or of each of "floats"; None: any number

    def read(self, text: str) -> Any:
        """The value that is spelled so."""
        return _READ[self.type](text)

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
class Axes:
    """`Axes` in core_cuda/core/declaration/signature.h. `fusedops/axes.py` reads the notation."""

    tensors: str
    when: str


@dataclass(frozen=True)
class GradientOf:
    input: str
    source: str


@dataclass(frozen=True)
class Passed:
    attribute: str
    source: str
    negated: bool


@dataclass(frozen=True)
class Step:
    """Towards the gradients of an operator's inputs: `Step` in core_cuda/core/declaration/operator.h."""

    op: str | None
    inputs: tuple[str | None, ...]
    gradients: tuple[GradientOf, ...]
    if_wanted: str | None
    if_given: str | None
    attributes: tuple[Passed, ...]


@dataclass(frozen=True)
class Operator:
    name: str
    type: str  # what graphs show of it: rms_norm is FusedopsRmsNorm
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    attributes: tuple[Attribute, ...]
    axes: tuple[Axes, ...]  # the first counts whose conditions hold
    derivative: tuple[Step, ...]  # none: a formula in fusedops/gradients
    autocast: bool
    differentiable: bool

    @property
    def has_effects_or_lists(self) -> bool:
        """Whether it updates inputs, or takes lists: it is not differentiable then, and not mapped over rows."""
        return any(x.updated or x.kind == "list" for x in self.inputs)

    @property
    def leading(self) -> int:
        """The place of the first input that is a tensor and always given, or a list."""
        return next(i for i, x in enumerate(self.inputs) if x.kind in ("tensor", "list"))


@dataclass(frozen=True)
class Core:
    table: dict[str, Operator]  # by name
    dtypes: tuple[str, ...]  # in the order of the core's numbers for them, as both frameworks spell them
    # Half of a symbol, of a dimension that a tracer knows by symbol only, is the symbol less this, and the number of
    # its blocks the symbol less twice this; both may be.
    half_symbol: int
    block: int  # elements
    padded: int  # what the distance between rows of a padded output is a multiple of


def read(library: ctypes.CDLL) -> Core:
    library.fusedops_describe.restype = ctypes.c_char_p
    described = json.loads(library.fusedops_describe())
    table = {row["name"]: _operator(row) for row in described["operators"]}
    return Core(table, tuple(described["dtypes"]), described["half_symbol"], described["block"], described["padded"])


def read_from(library: ctypes.CDLL, first: int) -> list[Operator]:
    """The rows of the table from this place on."""
    library.fusedops_describe_operators.restype = ctypes.c_char_p
    return rows(library.fusedops_describe_operators(ctypes.c_int64(first)))


def rows(described: str | bytes) -> list[Operator]:
    return [_operator(row) for row in json.loads(described)]


def _operator(row: dict[str, Any]) -> Operator:
    return Operator(
        name=row["name"],
        type=row["type"],
        inputs=tuple(Input(**item) for item in row["inputs"]),
        outputs=tuple(Output(**item) for item in row["outputs"]),
        attributes=tuple(_attribute(**item) for item in row["attributes"]),
        axes=tuple(Axes(**item) for item in row["axes"]),
        derivative=tuple(_step(**item) for item in row["derivative"]),
        autocast=row["autocast"],
        differentiable=row["differentiable"],
    )


def _step(
    inputs: list[str | None], gradients: list[dict[str, str]], attributes: list[dict[str, Any]], **rest: Any
) -> Step:
    return Step(
        inputs=tuple(inputs),
        gradients=tuple(GradientOf(**item) for item in gradients),
        attributes=tuple(Passed(**item) for item in attributes),
        **rest,
    )


def _attribute(name: str, type: str, default: str, choices: list[str], bounds: dict[str, Any] | None) -> Attribute:
    range = None if bounds is None else Bounds(float(bounds["least"]), float(bounds["most"]), bounds["is_open"])
    return Attribute(name, type, _READ[type](default), tuple(choices), range)


_READ: dict[str, Callable[[str], Any]] = {
    "float": float,
    "int": int,
    "bool": lambda text: text == "true",
    "str": str,
    "floats": lambda text: [float(number) for number in text.strip("[] ").split(",") if number.strip()],
}
