"""Progress of a run: a bar on a terminal, else a line every few cases."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich import progress
from rich.console import Console

EVERY = 10  # cases per line
T = TypeVar("T")


def shown(console: Console, title: str, items: Sequence[T], costs: Sequence[float]) -> Iterator[tuple[str, T]]:
    """Yields each item with its place, "3/40". `costs`: approximate seconds of each item."""
    begun = time.perf_counter()
    with _bar(console) as bar:
        task = bar.add_task(title, total=sum(costs), rows=f"0/{len(items)}")
        for number, (item, cost) in enumerate(zip(items, costs, strict=True), 1):
            place = f"{number}/{len(items)}"
            yield place, item
            bar.update(task, advance=cost, rows=place, refresh=True)
            if not console.is_terminal and number % EVERY == 0:
                console.print(f"about {_left(costs, number, time.perf_counter() - begun):.0f} s left")


def _bar(console: Console) -> progress.Progress:
    columns = (
        progress.TextColumn("{task.description} {task.fields[rows]}"),
        progress.BarColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("left"),
    )
    return progress.Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        auto_refresh=False,  # a drawing thread would disturb measurements
        speed_estimate_period=120,
    )


def _left(costs: Sequence[float], done: int, seconds: float) -> float:
    """The remaining seconds, from the ratio of time to costs so far."""
    return seconds * sum(costs[done:]) / sum(costs[:done])
