"""The results, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from comparing import Comparison
from data import accuracy
from rich.table import Table


def bits(comparisons: Sequence[Comparison]) -> Table:
    table = Table(title="PyTorch and TensorFlow with the same weights: what differs", title_justify="left")
    for heading in ("operators", "what", "values", "bits"):
        table.add_column(heading, justify="right" if heading in ("values", "bits") else "left")
    for i, c in enumerate(comparisons):
        values = np.count_nonzero(c.differing_bits)
        table.add_row(
            c.operators,
            f"{c.what}, {'graph' if c.compiled else 'eager'}",
            f"{values:,} of {c.first.size:,}",
            f"{c.differing_bits.sum():,} of {c.bits:,}",
            style="green" if values == 0 else "",
            end_section=i + 1 < len(comparisons) and comparisons[i + 1].operators != c.operators,
        )
    return table


def accuracies(comparisons: Sequence[Comparison], labels: np.ndarray) -> Table:
    table = Table(title="Test accuracy", title_justify="left")
    for heading in ("operators", "PyTorch", "TensorFlow"):
        table.add_column(heading, justify="left" if heading == "operators" else "right")
    for c in comparisons:
        if c.what == "test logits" and not c.compiled:
            table.add_row(c.operators, *(percent(accuracy(logits, labels)) for logits in (c.first, c.second)))
    return table


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
