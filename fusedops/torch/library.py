"""The compiled library, its operator table and the operators' signatures in torch.

The table can grow. `for_each(f)` calls f for each operator: for the present ones at once, and for later ones when they
are added.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusedops import declarations, loading, operator_table
from fusedops.torch import internals


def _load() -> ctypes.CDLL:
    path = str(loading.library("torch"))
    torch.ops.load_library(path)
    return ctypes.CDLL(path)


LIBRARY = _load()
CORE = declarations.read(LIBRARY)
TABLE = CORE.table
BUILT_IN = frozenset(TABLE)  # without operators that the process adds
DTYPES = tuple(getattr(torch, name) for name in CORE.dtypes)  # indexed by the core's dtype numbers


@dataclass(frozen=True)
class Signature:
    """An operator's arguments in the order of its schema: inputs, the numbers of scalar inputs, attributes."""

    declaration: declarations.Operator
    scalars: tuple[int, ...]  # positions of the scalar inputs

    @staticmethod
    def of(declaration: declarations.Operator) -> Signature:
        return Signature(declaration, tuple(i for i, x in enumerate(declaration.inputs) if x.kind == "scalar"))

    @property
    def inputs(self) -> int:
        return len(self.declaration.inputs)

    def padded(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The inputs among a call's arguments, with None for absent trailing ones, which torch leaves out."""
        given = tuple(inputs[: self.inputs])
        return given + (None,) * (self.inputs - len(given))

    def attributes(self, rest: tuple[Any, ...]) -> tuple[Any, ...]:
        """The attributes among the arguments after the inputs, with trailing defaults, which torch leaves out."""
        given = tuple(rest[len(self.scalars) :])
        return given + tuple(a.default for a in self.declaration.attributes[len(given) :])

    def named_attributes(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """The attributes among all arguments of a call."""
        values = self.attributes(tuple(arguments[self.inputs :]))
        return dict(zip([a.name for a in self.declaration.attributes], values, strict=True))

    def replaced(self, arguments: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
        """All arguments of a call, with other values of these attributes."""
        last = self.inputs + len(self.scalars)
        numbers = (*arguments[self.inputs : last], *(0.0 for _ in self.scalars))[: len(self.scalars)]
        values = self.named_attributes(arguments) | dict(attributes)
        return (*self.padded(arguments), *numbers, *values.values())


def overload(name: str) -> Callable[..., Any]:
    """The registered operator."""
    return getattr(torch.ops.fusedops, name).default


SIGNATURES: dict[str, Signature] = {}

OPERATOR_TABLE = operator_table.OperatorTable(LIBRARY, TABLE)
for_each = OPERATOR_TABLE.for_each
LIBRARY.fusedops_torch_register_new.restype = ctypes.c_char_p


@internals.before_tracing
def added() -> None:
    """Registers operators that were added to the core's table with torch."""
    OPERATOR_TABLE.extend(_register)


def _register(operators: Sequence[declarations.Operator]) -> dict[str, Exception]:
    sentence = LIBRARY.fusedops_torch_register_new()
    if sentence is None:
        return {}
    return {x.name: RuntimeError(sentence.decode()) for x in operators if not hasattr(torch.ops.fusedops, x.name)}


@internals.before_tracing
def add(operators: Callable[[], Any]) -> None:
    """Adds the operators of another library; `operators` is the function that it exports."""
    with OPERATOR_TABLE.lock:
        operator_table.add(LIBRARY, operators)
        added()


for_each(lambda operator: SIGNATURES.update({operator.name: Signature.of(operator)}))
