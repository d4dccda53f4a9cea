"""Measured times, as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from common.stopwatch import Times


def times(measured: Sequence[Times]) -> Table:
    table = Table(title="Times in milliseconds, medians", title_justify="left")
    for heading in ("work", "where", "fusedops", "its own", "fusedops is"):
        table.add_column(heading, justify="left" if heading in ("work", "where") else "right")
    for i, t in enumerate(measured):
        ratio = t.baseline / t.fused
        table.add_row(
            t.work,
            t.where,
            f"{t.fused * 1e3:.2f}",
            f"{t.baseline * 1e3:.2f}",
            f"{ratio:.2f} × faster" if ratio >= 1 else f"{1 / ratio:.2f} × slower",
            style="green" if ratio > 1.05 else "yellow" if ratio < 0.95 else "",
            end_section=i + 1 < len(measured) and measured[i + 1].work != t.work,
        )
    return table
