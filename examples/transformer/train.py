"""Trains a small language model of fusedops's operators in PyTorch, and generates text with it in each framework.

`python examples/transformer/train.py` needs no download, and a few minutes on two CPU cores.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for common

import comparing
import data
import picture
import tables
from common.stopwatch import Stopwatch
from common.tables import times
from common.terminal import found_sides, listed, measure_with_bar, options, progress_bar, say
from rich.console import Console
from rich.progress import Progress
from timing import timed_work

PROMPTS = ('The "with" statement', "A function ", "Strings ", "Changed in version 3")


def main() -> int:
    given = options(__doc__, "fewer steps, less text and shorter measurements", "transformer.png")
    steps, characters, seconds, wanted_loss = (60, 20, 0.1, 3.0) if given.quick else (2000, 110, 2.0, 1.5)

    start = time.perf_counter()
    console = Console(highlight=False)
    device, found = found_sides(console, "model")
    text = data.load()
    titles = listed([side.title for side in found])
    say(console, f"{titles} on the {device}: {len(text.train):,} characters of Python's help to train on")
    with progress_bar(console) as progress:
        trained = train_with_bar(progress, found[0], text, steps)
        task = progress.add_task("writing", total=sum(len(side.compiled) for side in found), now="")
        written = comparing.write(
            found,
            trained.parameters,
            text,
            PROMPTS,
            characters,
            lambda where: progress.update(task, advance=1, now=where),
        )
        measured = measure_with_bar(progress, Stopwatch(timed_work(trained.parameters, text), seconds), found)

    for one in written:
        same = one is not written[0] and one.differing_characters(written[0]) == 0
        say(console, f"\nwritten by {one.where}{': the same' if same else ':'}", "bold")
        for tokens in [] if same else one.texts:
            say(console, text.decoded(tokens) + "\n")
    for table in [*([tables.agreement(written)] if len(written) > 1 else []), times(measured)]:
        console.print("", table, sep="\n")
    picture.save(given.picture, trained, text, written, measured)
    say(console, f"\npicture: {given.picture}")
    loss = trained.test_losses[-1][1]
    say(console, f"{time.perf_counter() - start:.0f} seconds; test loss {loss:.3f} nats per character")
    return verdict(console, loss, wanted_loss, titles, written)


def train_with_bar(progress: Progress, side: Any, text: data.Text, steps: int) -> Any:
    """Trains, with a progress bar on a terminal, else with four lines."""
    import training  # needs PyTorch, which may be missing when this file is imported

    task = progress.add_task("training", total=steps, now="")

    def report(step: int, loss: float, test_loss: float) -> None:
        now = f"loss {loss:.3f}, test loss {test_loss:.3f}"
        progress.update(task, completed=step, now=now)
        if not progress.console.is_terminal and (step % (steps // 4) == 0):
            say(progress.console, f"step {step} of {steps}: {now}")

    return training.train(side, text, steps, report)


def verdict(console: Console, loss: float, wanted_loss: float, titles: str, written: Sequence[Any]) -> int:
    """Prints the verdict. Returns the exit code: 1 if the texts or a bit differ, or the loss is too high."""
    first, *others = written
    too_high = loss > wanted_loss
    if too_high:
        say(console, f"test loss {loss:.3f} is above {wanted_loss}", "red")
    same = all(other.differing_characters(first) == 0 for other in others)
    bits = sum(other.differing_bits(first) for other in others)
    if not others:
        say(console, "the same text from PyTorch and TensorFlow: not compared, TensorFlow is missing", "yellow")
    else:
        line = f"the same text from {titles}: {'yes' if same else 'no'}; differing bits of logits: {bits:,}"
        say(console, line, "bold green" if same and bits == 0 else "red")
    return int(too_high or not same or bits > 0)


if __name__ == "__main__":
    raise SystemExit(main())
