"""What long work shows, such as a build at run time: a bar where rich and a terminal are there, otherwise lines.

A line is such as "[12/40] …".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fusedops.building.ninja import Show


@contextmanager
def progress(say: Callable[[str], None], verbose: bool, still: bool = False) -> Iterator[Show]:
    """The function that is told of every step. A bar that is `still` is drawn then alone, and by no thread that would
    disturb what is measured."""
    bar = _bar(still) if verbose else None
    if bar is None:
        yield lambda done, steps, what: say(f"[{done}/{steps}] {what}")
        return
    with bar:
        task = bar.add_task("")
        yield lambda done, steps, what: bar.update(task, completed=done, total=steps, description=what, refresh=still)


def _bar(still: bool) -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        return None
    if not Console().is_terminal:
        return None
    return Progress(
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"), auto_refresh=not still
    )
