"""Trains a small language model of fusedops' operators in PyTorch, moves it to TensorFlow, and lets both write.

`python examples/transformer/train.py` needs no download, and a few minutes on two CPU cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import data
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

EXAMPLES = Path(__file__).resolve().parents[1]
PICTURE = EXAMPLES.parent / "build" / "transformer.png"
PROMPTS = ('The "with" statement', "A function ", "Strings ", "Changed in version 3")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps, less text and shorter measurements")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="where to save the picture [%(default)s]")
    options = parser.parse_args()
    steps, characters, seconds, wanted_loss = (60, 20, 0.1, 3.0) if options.quick else (2000, 110, 2.0, 1.5)

    start = time.perf_counter()
    console = Console(highlight=False)
    with console.status("importing PyTorch and TensorFlow"):
        device, found, missing = load_sides()
    for reason in missing:
        say(console, f"missing: {reason}", "yellow")
    if not found or found[0].title != "PyTorch":
        say(console, "The model is trained in PyTorch: without it there is nothing to show.", "red")
        return 1

    import comparing
    import picture  # needs PyTorch, as do training and what it imports
    import tables  # needs the digits' folder, as does timing
    from stopwatch import Stopwatch
    from timing import timed_work

    text = data.load()
    titles = " and ".join(side.title for side in found)
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
    for table in [*([tables.agreement(written)] if len(written) > 1 else []), tables.times(measured)]:
        console.print("", table, sep="\n")
    picture.save(options.picture, trained, text, written, measured)
    say(console, f"\npicture: {options.picture}")
    loss = trained.test_losses[-1][1]
    say(console, f"{time.perf_counter() - start:.0f} seconds; test loss {loss:.3f} nats per character")
    return verdict(console, loss, wanted_loss, written)


def load_sides() -> tuple[str, list[Any], list[str]]:
    """As for the digits, whose module finds the frameworks; `in_torch` and `in_tf` are those beside this file."""
    sys.path.append(str(EXAMPLES / "digits"))
    import sides

    return sides.load()


def progress_bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def train_with_bar(progress: Progress, side: Any, text: data.Text, steps: int) -> Any:
    """Training, with a bar in a terminal and a line now and then elsewhere."""
    import training  # needs PyTorch, which may be missing when this file is read

    task = progress.add_task("training", total=steps, now="")

    def report(step: int, loss: float, test_loss: float) -> None:
        now = f"loss {loss:.3f}, test loss {test_loss:.3f}"
        progress.update(task, completed=step, now=now)
        if not progress.console.is_terminal and (step % (steps // 4) == 0):
            say(progress.console, f"step {step} of {steps}: {now}")

    return training.train(side, text, steps, report)


def measure_with_bar(progress: Progress, stopwatch: Any, found: Sequence[Any]) -> list[Any]:
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


def verdict(console: Console, loss: float, wanted_loss: float, written: Sequence[Any]) -> int:
    """The last line, and the exit code: 1 if the example did not show what it is for."""
    first, *others = written
    too_high = loss > wanted_loss
    if too_high:
        say(console, f"test loss {loss:.3f} is above {wanted_loss}", "red")
    same = all(other.differing_characters(first) == 0 for other in others)
    bits = sum(other.differing_bits(first) for other in others)
    if not others:
        say(console, "the same text from PyTorch and TensorFlow: not compared, TensorFlow is missing", "yellow")
    else:
        line = (
            f"the same text from PyTorch and TensorFlow: {'yes' if same else 'no'}; differing bits of logits: {bits:,}"
        )
        say(console, line, "bold green" if same and bits == 0 else "red")
    return int(too_high or not same or bits > 0)


def say(console: Console, line: str, style: str = "") -> None:
    """One line, never folded, never read as markup."""
    console.print(Text(line, style=style), soft_wrap=True)


if __name__ == "__main__":
    raise SystemExit(main())
