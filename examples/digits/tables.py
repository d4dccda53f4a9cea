"""The results, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from comparing import Comparison, of_logits
from data import accuracy
from rich.table import Table


def bits(comparisons: Sequence[Comparison]) -> Table:
    table = Table(title="What differs from PyTorch with the same weights", title_justify="left")
    for heading in ("operators", "what", "values", "bits"):
        table.add_column(heading, justify="right" if heading in ("values", "bits") else "left")
    for i, c in enumerate(comparisons):
        values = np.count_nonzero(c.differing_bits)
        table.add_row(
            c.operators,
            f"{c.what}, {c.other} {'compiled' if c.compiled else 'eager'}",
            f"{values:,} of {c.first.size:,}",
            f"{c.differing_bits.sum():,} of {c.bits:,}",
            style="green" if values == 0 else "",
            end_section=i + 1 < len(comparisons) and comparisons[i + 1].operators != c.operators,
        )
    return table


def accuracies(comparisons: Sequence[Comparison], labels: np.ndarray) -> Table:
    table = Table(title="Test accuracy", title_justify="left")
    compared = of_logits(comparisons)
    for heading in ("operators", "PyTorch", *dict.fromkeys(c.other for c in compared)):
        table.add_column(heading, justify="left" if heading == "operators" else "right")
    for operators in dict.fromkeys(c.operators for c in compared):
        first, *others = [c for c in compared if c.operators == operators]
        logits = [first.first, first.second, *(c.second for c in others)]
        table.add_row(operators, *(percent(accuracy(x, labels)) for x in logits))
    return table


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
