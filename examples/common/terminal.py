"""The terminal of an example: options, progress bars, lines."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from common import sides
from common.stopwatch import Stopwatch, Times

BUILD = Path(__file__).resolve().parents[2] / "build"


def options(description: str | None, quick: str, picture: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--picture", type=Path, default=BUILD / picture, help="where to save the picture [%(default)s]")
    return parser.parse_args()


def found_sides(console: Console, trained: str) -> tuple[str, list[Any]]:
    """The device and the installed frameworks, PyTorch first. Without PyTorch the program ends."""
    with console.status("importing the frameworks"):
        device, found, missing = sides.load()
    for reason in missing:
        say(console, f"missing: {reason}", "yellow")
    if not found or found[0].title != "PyTorch":
        say(console, f"The {trained} is trained in PyTorch: without it there is nothing to show.", "red")
        raise SystemExit(1)
    return device, found


def listed(titles: Sequence[str]) -> str:
    """The titles as in a sentence."""
    return " and ".join(filter(None, [", ".join(titles[:-1]), titles[-1]]))


def progress_bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def measure_with_bar(progress: Progress, stopwatch: Stopwatch, found: Sequence[Any]) -> list[Times]:
    cases = stopwatch.cases(found)
    task = progress.add_task("timing", total=len(cases), now="")
    if not progress.console.is_terminal:
        say(progress.console, "timing")
    measured = []
    for work, side, compiled in cases:
        progress.update(task, now=f"{work}, {side.title}")
        measured.append(stopwatch.measure(work, side, compiled))
        progress.update(task, advance=1)
    return measured


def say(console: Console, line: str, style: str = "") -> None:
    """Prints one line, without wrapping or markup."""
    console.print(Text(line, style=style), soft_wrap=True)
