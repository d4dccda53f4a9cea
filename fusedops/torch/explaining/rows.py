"""The rows of an explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fusedops.torch.explaining.explanation import Cost, Row
from fusedops.torch.explaining.steps import Classes, Measurements

_LEAST = 0.01  # minimum share of the step for an unconverted kind to get its own row


def rows(theirs: Classes, ours: Classes, before: Measurements, after: Measurements) -> tuple[Row, ...]:
    """One row per kind of module, the slowest first. Small unconverted kinds share one row."""
    counts: Counter[Any] = Counter(theirs.values())
    replaced: Counter[Any] = Counter(kind for module, kind in theirs.items() if ours[module] is not kind)
    made = [Row(kind.__name__, counts[kind], replaced[kind], before.cost(kind), after.cost(kind)) for kind in counts]
    made.sort(key=lambda row: row.theirs.seconds, reverse=True)
    least = _LEAST * sum(row.theirs.seconds for row in made), _LEAST * before.saved.total()
    small = [row for row in made if not row.replaced and _is_below(row, *least)]
    shown = [row for row in made if row not in small]
    if not all(_is_below(row, 0, 0) for row in small):
        name = f"{len(small)} other classes" if len(small) > 1 else small[0].kind
        count = sum(row.count for row in small)
        shown.append(Row(name, count, 0, _sum([row.theirs for row in small]), _sum([row.ours for row in small])))
    return (*shown, Row("outside of all modules", 0, 0, before.cost(None), after.cost(None)))


def _is_below(row: Row, seconds: float, saved: float) -> bool:
    return all(cost.seconds <= seconds and cost.saved <= saved for cost in (row.theirs, row.ours))


def _sum(costs: Sequence[Cost]) -> Cost:
    return Cost(sum(cost.seconds for cost in costs), sum(cost.saved for cost in costs))
