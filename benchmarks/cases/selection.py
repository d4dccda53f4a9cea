"""The selection of cases by command-line options."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from benchmarks.cases.case import GROWTH, SECTIONS, Case, bandwidth_case, product
from benchmarks.operators import OPERATORS

Shape = tuple[int, ...]

# Sections whose cases accept any shape and dtype.
RESIZABLE = ("stream", "matmul", "linear", "rows", "small", "python", "cpu", "cpu-rows")
# Implementations that compile, which --quick leaves out.
COMPILED = ("compiled", "compiled, mask of ones", "compiled, CUDA graphs", "XLA", "Liger", "QuACK")
COMPILED += ("compiled, CUDA graphs, PyTorch's AdamW",)
COMPILED += tuple(f"fusedops, {name}" for name in COMPILED)


@dataclass(frozen=True)
class Selection:
    """The command line's filters; an empty one selects all."""

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
        """The case in that shape and all selected dtypes, without goals, which hold for the tables' shapes only."""
        fitting = _fitting(case, shape) if case.section in RESIZABLE else None
        if not fitting:
            return []
        dtypes = self.dtypes or (case.dtype,)
        if case.is_product:
            m, n, k = fitting
            at = (case.section, case.device, case.variant)
            return [product(*at, dtype, (m, n, k), operator=case.operator) for dtype in dtypes]
        where = (case.section, case.device, case.operator, case.variant)
        return [bandwidth_case(*where, dtype, fitting, frameworks=case.frameworks) for dtype in dtypes]


def parse_shape(text: str) -> Shape:
    """Parses 1048576 (elements), 4096x8192 (rows and columns) or 512x512x512 (M, N, K of a product)."""
    sizes = text.split("x")
    if len(sizes) > 3 or not all(size.isdecimal() and int(size) for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is none of 1048576, 4096x8192 and 512x512x512, as examples")
    return tuple(map(int, sizes))


def _fitting(case: Case, shape: Shape) -> Shape | None:
    """The shape as the operator needs it, or None: three sizes are for products, one for elementwise operators."""
    if len(shape) == 3 or case.is_arithmetic:
        return shape if len(shape) == 3 and case.is_product else None
    operator = OPERATORS[case.operator]
    if len(shape) == 1:
        return shape if operator.elementwise else None
    fitting = operator.shape(*shape)
    return fitting if prod(fitting) == prod(shape) else None


def _one_each(cases: Iterable[Case]) -> list[Case]:
    """One shape and dtype per operator and variant, bfloat16 if available; all sizes of the growth sections."""
    found: dict[tuple[str, ...], Case] = {}
    for case in sorted(cases, key=lambda case: case.dtype != "bfloat16"):
        size = str(case.shape) if case.section in GROWTH else ""
        variant = "" if case.operator == "matmul" else case.variant
        found.setdefault((case.section, case.device, case.operator, variant, size), case)
    return list(found.values())


def _in(value: str, wanted: Sequence[str]) -> bool:
    return not wanted or value in wanted
