"""The results, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from comparing import Written
from rich.table import Table


def agreement(written: Sequence[Written]) -> Table:
    """The differences of each framework's text and logits from the first's."""
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
