"""Runs a function for every family, each in a separate process with a time limit, and shows progress."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_Result = TypeVar("_Result")
_EVERY = 20  # families per line of progress if there is no terminal


class Problem(Exception):
    """A function gave no result for a family; the message says why."""


def run(
    function: Callable[[str], _Result],
    names: Iterable[str],
    limit: float,
    modules: list[str],
    title: str,
    at_once: int | None = None,
) -> Iterator[tuple[str, _Result | Problem]]:
    """Yields each name with its result, in the order of `names`.

    Args:
        function: a module-level function of a family's name.
        names: the families' names.
        limit: the time limit per family, in seconds.
        modules: modules imported once before the processes are forked: importing a framework takes longer than a small
            model.
        title: the title of the progress bar.
        at_once: the number of concurrent processes; by default the number of cores.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *modules])
    names = list(names)

    def one(name: str) -> _Result | Problem:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(theirs, function, name), daemon=True)
        process.start()
        theirs.close()
        start = time.monotonic()
        try:
            result = ours.recv() if ours.poll(limit) else Problem(f"it took longer than {limit:.0f} s")
        except EOFError:
            process.join()
            result = Problem(f"its process ended with status {process.exitcode}")
        if time.monotonic() - start >= limit:
            process.kill()
        process.join()
        progress.update(task, advance=1, name=name)
        done = progress.tasks[0].completed
        if not progress.console.is_terminal and done % _EVERY == 0:
            print(f"{done:.0f} of {len(names)}", file=sys.stderr, flush=True)
        return result

    columns = (
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[name]}"),
    )
    with (
        Progress(*columns, console=Console(stderr=True)) as progress,
        ThreadPoolExecutor(at_once or len(os.sched_getaffinity(0))) as threads,
    ):
        task = progress.add_task(title, total=len(names), name="")
        yield from zip(names, threads.map(one, names), strict=True)


def _send(pipe: Connection, function: Callable[[str], Any], name: str) -> None:
    try:
        result = function(name)
    except Exception as error:
        text = " ".join(str(error).split())
        result = Problem(f"{type(error).__name__}: {text}"[:300])
    pipe.send(result)
