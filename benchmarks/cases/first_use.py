"""Cases of the first use of an expression, from its text to the result of the first call."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cases.case import FIRST_USE, Case, bandwidth_case
from benchmarks.operators import OPERATORS


def first_use_cases() -> Iterator[Case]:
    operators = (OPERATORS["biased_gate"], OPERATORS["rms_norm"])  # one elementwise, one with row reductions
    for device, dtype in (("cuda", "bfloat16"), ("cpu", "float32")):
        for operator in operators:
            yield bandwidth_case(FIRST_USE, device, operator.name, "first use", dtype, operator.smallest)
