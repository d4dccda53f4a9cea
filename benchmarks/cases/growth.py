"""What is measured: sizes that grow from 2^6 elements, on the GPU to 2^31 of bfloat16, on the CPU 2^26 of float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.cases.case import Case, moving

# Powers of two; the last is beyond what 32-bit signed indices count.
POWERS = {"cuda": (6, 10, 14, 18, 20, 22, 25, 28, 31), "cpu": (6, 10, 14, 18, 22, 26)}
DTYPES = {"cuda": "bfloat16", "cpu": "float32"}
COLUMNS = 2**10  # fewer elements are one row
FEW = 2**6  # rows, of any length

# Section -> those that stand for the others: one that is elementwise, one and two passes over a row, many classes.
SHOWN = {
    "growth": ("axpby",),
    "growth-rows": ("rms_norm", "softmax"),
    "growth-length": ("rms_norm", "softmax", "cross_entropy"),
}


def growth_cases() -> Iterator[Case]:
    for device, powers in POWERS.items():
        for section, operators in SHOWN.items():
            for operator in operators:
                for power in powers:
                    shape = _shape(section, 2**power)
                    case = moving(section, device, operator, "forward", DTYPES[device], shape)
                    # TensorFlow reads the host's clock on a GPU, which shows nothing of small sizes.
                    yield replace(case, frameworks=("torch",)) if device == "cuda" else case


def _shape(section: str, elements: int) -> tuple[int, ...]:
    match section:
        case "growth-rows":
            return max(1, elements // COLUMNS), min(elements, COLUMNS)
        case "growth-length":
            return FEW, elements // FEW
    return (elements,)
