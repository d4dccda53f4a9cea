"""Trains a network of fusedops' operators in PyTorch, moves it to TensorFlow, and compares the two bit by bit.

`python examples/digits/train.py` needs no download and less than a minute.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import data
import picture
import sides
import tables
from comparing import Comparison, compare
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text
from stopwatch import Stopwatch
from timing import timed_work

PICTURE = Path(__file__).resolve().parents[2] / "build" / "digits.png"
WANTED_ACCURACY = 0.96


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer epochs and shorter measurements")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="where to save the picture [%(default)s]")
    options = parser.parse_args()
    epochs, seconds = (12, 0.05) if options.quick else (40, 1.0)

    start = time.perf_counter()
    console = Console(highlight=False)
    with console.status("importing PyTorch and TensorFlow"):
        device, found, missing = sides.load()
    for reason in missing:
        say(console, f"missing: {reason}", "yellow")
    if not found or found[0].title != "PyTorch":
        say(console, "The network is trained in PyTorch: without it there is nothing to show.", "red")
        return 1

    digits = data.load()
    titles = " and ".join(side.title for side in found)
    train, test = len(digits.train_labels), len(digits.test_labels)
    say(console, f"{titles} on the {device}: {train} images of digits to train on, {test} to test")
    with progress_bar(console) as progress:
        trained = train_with_bar(progress, found[0], digits, epochs)
        comparisons = compare(*found, trained.parameters, digits) if len(found) == 2 else []
        measured = measure_with_bar(progress, Stopwatch(timed_work(trained.parameters, digits), seconds), found)
    logits = found[0].logits(found[0].fused, trained.parameters, digits.test_images, compiled=False)

    found_out = [tables.accuracies(comparisons, digits.test_labels), tables.bits(comparisons)] if comparisons else []
    for table in [*found_out, tables.times(measured)]:
        console.print("", table, sep="\n")
    picture.save(options.picture, trained.losses, trained.accuracies, logits, digits, comparisons, measured)
    say(console, f"\npicture: {options.picture}")
    say(console, f"{time.perf_counter() - start:.0f} seconds; test accuracy {tables.percent(trained.accuracies[-1])}")
    return verdict(console, trained.accuracies[-1], comparisons)


def progress_bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def train_with_bar(progress: Progress, side: Any, digits: data.Digits, epochs: int) -> Any:
    """Training, with a bar in a terminal and a line now and then elsewhere."""
    import training  # needs PyTorch, which may be missing when this file is read

    task = progress.add_task("training", total=epochs, now="")

    def report(epoch: int, loss: float, accuracy: float) -> None:
        now = f"loss {loss:.4f}, test accuracy {tables.percent(accuracy)}"
        progress.update(task, advance=1, now=now)
        if not progress.console.is_terminal and (epoch % 10 == 0 or epoch == epochs):
            say(progress.console, f"epoch {epoch} of {epochs}: {now}")

    return training.train(side, digits, epochs, report)


def measure_with_bar(progress: Progress, stopwatch: Stopwatch, found: Sequence[Any]) -> list[Any]:
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


def verdict(console: Console, accuracy: float, comparisons: Sequence[Comparison]) -> int:
    """The last line, and the exit code: 1 if the demo did not show what it is for."""
    differing = sum(int(c.differing_bits.sum()) for c in comparisons if c.operators == "fusedops")
    bits = sum(c.bits for c in comparisons if c.operators == "fusedops")
    too_low = accuracy < WANTED_ACCURACY
    if too_low:
        say(console, f"test accuracy {tables.percent(accuracy)} is below {tables.percent(WANTED_ACCURACY)}", "red")
    if not comparisons:
        say(console, "differing bits between PyTorch and TensorFlow: not compared, TensorFlow is missing", "yellow")
    else:
        line = f"differing bits between PyTorch and TensorFlow: {differing:,} of {bits:,}"
        say(console, line, "red" if differing else "bold green")
    return int(too_low or differing > 0)


def say(console: Console, line: str, style: str = "") -> None:
    """One line, never folded, never read as markup."""
    console.print(Text(line, style=style), soft_wrap=True)


if __name__ == "__main__":
    raise SystemExit(main())
