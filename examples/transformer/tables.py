"""What was found, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from comparing import Written
from rich.table import Table
from stopwatch import Times


def agreement(written: Sequence[Written]) -> Table:
    """How each framework compares with the first."""
    first = written[0]
    table = Table(title=f"Compared with {first.where}, the same weights: what differs", title_justify="left")
    for heading in ("", "characters written", "bits of the test logits"):
        table.add_column(heading, justify="right" if heading else "left")
    for other in written[1:]:
        characters, bits = other.differing_characters(first), other.differing_bits(first)
        table.add_row(
            other.where,
            f"{characters:,} of {first.characters:,}",
            f"{bits:,} of {32 * first.logits.size:,}",
            style="" if characters or bits else "green",
        )
    return table


def times(measured: Sequence[Times]) -> Table:
    table = Table(title="Times in milliseconds, medians", title_justify="left")
    for heading in ("work", "where", "fusedops", "its own operators", "fusedops is"):
        table.add_column(heading, justify="left" if heading in ("work", "where") else "right")
    for i, t in enumerate(measured):
        ratio = t.own / t.fused
        table.add_row(
            t.work,
            t.where,
            f"{t.fused * 1e3:.2f}",
            f"{t.own * 1e3:.2f}",
            f"{ratio:.2f} × faster" if ratio >= 1 else f"{1 / ratio:.2f} × slower",
            style="green" if ratio > 1.05 else "yellow" if ratio < 0.95 else "",
            end_section=i + 1 < len(measured) and measured[i + 1].work != t.work,
        )
    return table
