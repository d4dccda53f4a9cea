"""Progress of long work, such as a build: a bar if rich and a terminal are available, otherwise one line per step.

A line looks like "[12/40] nvcc core_cuda/ops/attention/softmax.cu".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol


class Show(Protocol):
    """Shows that `done` of `steps` have ended and `running` are in progress. `begun`: the step just started, or ""."""

    def __call__(self, done: int, steps: int, begun: str, running: Sequence[str] = (), /) -> None: ...


def silent(done: int, steps: int, begun: str, running: Sequence[str] = ()) -> None:
    """A Show that shows nothing."""


@contextmanager
def progress(say: Callable[[str], None], verbose: bool, still: bool = False) -> Iterator[Show]:
    """Yields the function to call when a step begins or ends. A `still` bar is redrawn only by these calls, without a
    thread that would disturb measurements."""
    bar = _bar(still) if verbose else None
    if bar is None:

        def line(done: int, steps: int, begun: str, running: Sequence[str] = ()) -> None:
            if begun:
                say(f"[{done + len(running)}/{steps}] {begun}")

        yield line
        return
    task = bar.add_task("")

    def redraw(done: int, steps: int, begun: str, running: Sequence[str] = ()) -> None:
        text = ", ".join(Path(step).name for step in running) or begun
        bar.update(task, completed=done, total=steps, description=text, refresh=still)
        bar.start()  # only now, so that no bar appears if nothing is stale

    try:
        yield redraw
    finally:
        bar.stop()


def _bar(still: bool) -> Any:
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column
    except ImportError:
        return None
    if not Console().is_terminal:
        return None
    return Progress(
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        expand=True,
        auto_refresh=not still,
    )
