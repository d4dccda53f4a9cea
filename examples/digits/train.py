"""Trains a network of fusedops's operators in PyTorch, moves it to the other frameworks, and compares their bits.

`python examples/digits/train.py` needs no download and less than a minute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for common

import data
import picture
import tables
from common.stopwatch import Stopwatch
from common.tables import times
from common.terminal import found_sides, listed, measure_with_bar, options, progress_bar, say
from comparing import Comparison, compare
from rich.console import Console
from rich.progress import Progress
from timing import timed_work

WANTED_ACCURACY = 0.96


def main() -> int:
    given = options(__doc__, "fewer epochs and shorter measurements", "digits.png")
    epochs, seconds = (12, 0.05) if given.quick else (40, 1.0)

    start = time.perf_counter()
    console = Console(highlight=False)
    device, found = found_sides(console, "network")
    digits = data.load()
    titles = listed([side.title for side in found])
    train, test = len(digits.train_labels), len(digits.test_labels)
    say(console, f"{titles} on the {device}: {train} images of digits to train on, {test} to test")
    with progress_bar(console) as progress:
        trained = train_with_bar(progress, found[0], digits, epochs)
        comparisons = [c for other in found[1:] for c in compare(found[0], other, trained.parameters, digits)]
        measured = measure_with_bar(progress, Stopwatch(timed_work(trained.parameters, digits), seconds), found)
    logits = found[0].logits(found[0].fused, trained.parameters, digits.test_images, compiled=False)

    compared = [tables.accuracies(comparisons, digits.test_labels), tables.bits(comparisons)] if comparisons else []
    for table in [*compared, times(measured)]:
        console.print("", table, sep="\n")
    picture.save(given.picture, trained.losses, trained.accuracies, logits, digits, comparisons, measured)
    say(console, f"\npicture: {given.picture}")
    say(console, f"{time.perf_counter() - start:.0f} seconds; test accuracy {tables.percent(trained.accuracies[-1])}")
    return verdict(console, trained.accuracies[-1], titles, comparisons)


def train_with_bar(progress: Progress, side: Any, digits: data.Digits, epochs: int) -> Any:
    """Trains, with a progress bar on a terminal, else with a line for every tenth epoch."""
    import training  # needs PyTorch, which may be missing when this file is imported

    task = progress.add_task("training", total=epochs, now="")

    def report(epoch: int, loss: float, accuracy: float) -> None:
        now = f"loss {loss:.4f}, test accuracy {tables.percent(accuracy)}"
        progress.update(task, advance=1, now=now)
        if not progress.console.is_terminal and (epoch % 10 == 0 or epoch == epochs):
            say(progress.console, f"epoch {epoch} of {epochs}: {now}")

    return training.train(side, digits, epochs, report)


def verdict(console: Console, accuracy: float, titles: str, comparisons: Sequence[Comparison]) -> int:
    """Prints the verdict. Returns the exit code: 1 if a bit differs or the accuracy is too low."""
    differing = sum(int(c.differing_bits.sum()) for c in comparisons if c.operators == "fusedops")
    bits = sum(c.bits for c in comparisons if c.operators == "fusedops")
    too_low = accuracy < WANTED_ACCURACY
    if too_low:
        say(console, f"test accuracy {tables.percent(accuracy)} is below {tables.percent(WANTED_ACCURACY)}", "red")
    if not comparisons:
        say(console, "differing bits between PyTorch and TensorFlow: not compared, TensorFlow is missing", "yellow")
    else:
        line = f"differing bits between {titles}: {differing:,} of {bits:,}"
        say(console, line, "red" if differing else "bold green")
    return int(too_low or differing > 0)


if __name__ == "__main__":
    raise SystemExit(main())
