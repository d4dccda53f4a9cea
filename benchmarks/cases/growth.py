"""Cases of growing sizes, from 2^6 elements to 2^31 of bfloat16 on the GPU and 2^26 of float32 on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.cases.case import Case, bandwidth_case

# Exponents of two; 2^31 exceeds 32-bit signed indices.
POWERS = {"cuda": (6, 10, 14, 18, 20, 22, 25, 28, 31), "cpu": (6, 10, 14, 18, 22, 26)}
DTYPES = {"cuda": "bfloat16", "cpu": "float32"}
COLUMNS = 2**10  # row length; fewer elements form one row
ROWS = 2**6  # number of rows in growth-length

# Section -> representative operators: elementwise, one and two passes over a row, and many classes.
REPRESENTATIVES = {
    "growth": ("axpby",),
    "growth-rows": ("rms_norm", "softmax"),
    "growth-length": ("rms_norm", "softmax", "cross_entropy"),
}


def growth_cases() -> Iterator[Case]:
    for device, powers in POWERS.items():
        for section, operators in REPRESENTATIVES.items():
            for operator in operators:
                for power in powers:
                    shape = _shape(section, 2**power)
                    case = bandwidth_case(section, device, operator, "forward", DTYPES[device], shape)
                    # On a GPU, TensorFlow's times are the host's, which do not resolve small sizes.
                    yield replace(case, frameworks=("torch",)) if device == "cuda" else case


def _shape(section: str, elements: int) -> tuple[int, ...]:
    match section:
        case "growth-rows":
            return max(1, elements // COLUMNS), min(elements, COLUMNS)
        case "growth-length":
            return ROWS, elements // ROWS
    return (elements,)
