"""The declarations of operators, read from the compiled core in a binding's library."""

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
    in_rows: bool  # kernels read its last dimension with unit stride, and the binding copies a tensor that has another
    parameter: bool  # shared by all rows
    updated: bool  # mutated: a variable in TensorFlow
    only_for: str | None  # the only output that reads it; None: all outputs may


@dataclass(frozen=True)
class Output:
    name: str
    dtype: str  # an input's name, "compute(<input>)", or the attribute that names it
    saved: bool
    padded: bool  # on a GPU, rows of 16 bits begin at multiples of 16 bytes
    overwrites: str | None  # an input whose memory it may have


@dataclass(frozen=True)
class Bounds:
    """The range of a number: `Bounds` in core_cuda/core/declaration/signature.h. The core checks it."""

    least: float
    most: float
    is_open: bool  # `most` is excluded


@dataclass(frozen=True)
class Attribute:
    name: str
    type: str  # "float", "int", "bool", "str" or "floats"
    default: Any
    choices: tuple[str, ...] = ()  # allowed values of a "str"; empty: any
    bounds: Bounds | None = None  # of a number, or of each of "floats"; None: any

    def read(self, text: str) -> Any:
        """Parses a value."""
        return _READ[self.type](text)

    def spelled(self, value: Any) -> str:
        """The value as the core parses it. Doubles keep all their bits."""
        if self.type == "bool":
            return "true" if value else "false"
        if self.type == "float":
            return repr(float(value))
        if self.type == "floats":
            return "[" + ", ".join(repr(float(number)) for number in value) + "]"
        return str.__str__(value) if self.type == "str" else str(value)  # the value of an enum's member


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
    function: str  # the public function's name, which errors have
    type: str  # its name in graphs: rms_norm is FusedopsRmsNorm
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    attributes: tuple[Attribute, ...]
    axes: tuple[Axes, ...]  # the first one whose conditions hold applies
    derivative: tuple[Step, ...]  # empty: the gradient is a formula in fusedops/gradients
    autocast: bool
    differentiable: bool

    @property
    def has_effects_or_lists(self) -> bool:
        """True if it mutates inputs or takes lists. It is then neither differentiable nor mapped over rows."""
        return any(x.updated or x.kind == "list" for x in self.inputs)

    @property
    def leading(self) -> int:
        """The index of the first input that is a list or a required tensor."""
        return next(i for i, x in enumerate(self.inputs) if x.kind in ("tensor", "list"))


@dataclass(frozen=True)
class Core:
    table: dict[str, Operator]  # by name
    dtypes: tuple[str, ...]  # names in all frameworks, in the core's order
    # Symbolic dimensions of a tracer: half of symbol s is s - half_symbol, its number of blocks s - 2 * half_symbol.
    # Both may apply to one dimension.
    half_symbol: int
    block: int  # elements
    padded: int  # the distance between rows of a padded output is a multiple of it


def read(library: ctypes.CDLL) -> Core:
    library.fusedops_describe.restype = ctypes.c_char_p
    described = json.loads(library.fusedops_describe())
    table = {x["name"]: _operator(x) for x in described["operators"]}
    return Core(table, tuple(described["dtypes"]), described["half_symbol"], described["block"], described["padded"])


def read_from(library: ctypes.CDLL, first: int) -> list[Operator]:
    """The operators of the table from index `first` on."""
    library.fusedops_describe_operators.restype = ctypes.c_char_p
    return operators(library.fusedops_describe_operators(ctypes.c_int64(first)))


def operators(described: str | bytes) -> list[Operator]:
    return [_operator(x) for x in json.loads(described)]


def _operator(declared: dict[str, Any]) -> Operator:
    return Operator(
        name=declared["name"],
        function=declared["function"],
        type=declared["type"],
        inputs=tuple(Input(**x) for x in declared["inputs"]),
        outputs=tuple(Output(**x) for x in declared["outputs"]),
        attributes=tuple(_attribute(**x) for x in declared["attributes"]),
        axes=tuple(Axes(**x) for x in declared["axes"]),
        derivative=tuple(_step(**x) for x in declared["derivative"]),
        autocast=declared["autocast"],
        differentiable=declared["differentiable"],
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
