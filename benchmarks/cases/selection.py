"""Which of the cases are measured: what the options of the command line ask for."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from benchmarks.cases.case import GROWTH, SECTIONS, Case, moving, product
from benchmarks.operators import OPERATORS

Shape = tuple[int, ...]

# Sections whose cases make sense in any shape and dtype.
RESIZABLE = ("stream", "matmul", "linear", "rows", "small", "python", "cpu", "cpu-rows")
# Contenders that compile first, which --quick leaves out.
COMPILED = ("compiled", "compiled, mask of ones", "XLA", "Liger", "QuACK")
COMPILED += tuple(f"fusedops, {name}" for name in COMPILED)


@dataclass(frozen=True)
class Selection:
    """Empty: all."""

    operators: Sequence[str] = ()
    sections: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    shapes: Sequence[Shape] = ()
    quick: bool = False

    def of(self, cases: Iterable[Case]) -> list[Case]:
        cases = [case for case in cases if _in(case.operator, self.operators) and _in(case.section, self.sections)]
        if self.shapes:
            cases = [new for case in cases for shape in self.shapes for new in self._resized(case, shape)]
        cases = [case for case in cases if _in(case.dtype, self.dtypes)]
        if self.quick:
            cases = _one_each(case for case in cases if self.sections or SECTIONS[case.section].is_quick)
        return list({case.key: case for case in cases}.values())

    def _resized(self, case: Case, shape: Shape) -> list[Case]:
        """In that shape, and in all dtypes that are asked for. Goals are of the tables' shapes alone."""
        fitting = _fitting(case, shape) if case.section in RESIZABLE else None
        if not fitting:
            return []
        dtypes = self.dtypes or (case.dtype,)
        if case.is_product:
            m, n, k = fitting
            at = (case.section, case.device, case.variant)
            return [product(*at, dtype, (m, n, k), operator=case.operator) for dtype in dtypes]
        where = (case.section, case.device, case.operator, case.variant)
        return [moving(*where, dtype, fitting, frameworks=case.frameworks) for dtype in dtypes]


def parse_shape(text: str) -> Shape:
    """Of the command line: 1048576 elements, 4096x8192 rows and columns, or M, N and K of a product."""
    sizes = text.split("x")
    if len(sizes) > 3 or not all(size.isdecimal() and int(size) for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is none of 1048576, 4096x8192 and 512x512x512, as examples")
    return tuple(map(int, sizes))


def _fitting(case: Case, shape: Shape) -> Shape | None:
    """What the operator makes of it: three numbers are a matrix product's, one is that of elements."""
    if len(shape) == 3 or case.is_arithmetic:
        return shape if len(shape) == 3 and case.is_product else None
    operator = OPERATORS[case.operator]
    if len(shape) == 1:
        return shape if operator.elementwise else None
    fitting = operator.shape(*shape)
    return fitting if prod(fitting) == prod(shape) else None


def _one_each(cases: Iterable[Case]) -> list[Case]:
    """One shape and dtype of each row of a table, bfloat16 where it is one of them; all sizes that grow."""
    found: dict[tuple[str, ...], Case] = {}
    for case in sorted(cases, key=lambda case: case.dtype != "bfloat16"):
        size = str(case.shape) if case.section in GROWTH else ""
        variant = "" if case.operator == "matmul" else case.variant
        found.setdefault((case.section, case.device, case.operator, variant, size), case)
    return list(found.values())


def _in(value: str, wanted: Sequence[str]) -> bool:
    return not wanted or value in wanted
