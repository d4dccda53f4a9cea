"""Random calls against float64, by seed and time.

python -m soak                                      a minute of calls, on all cores but two
python -m soak --seed 7 --calls 1000000             a million other calls
python -m soak --framework torch --device cuda      PyTorch on the GPU only
python -m soak --op rms_norm --way backward         one operator, called in one way
python -m soak --call 7:1234                        repeats one call, such as one that failed
compute-sanitizer python -m soak --processes 1 --calls 10000 --framework torch --device cuda --eager

Every call is checked against a reference in float64 or longer, within the tolerance of its dtype. If its bits are
guaranteed, it is made twice, and every second one also in another framework. A failing call is simplified as long as
it fails, and printed as a program.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from soak import crew, report
from soak.plan import DEVICES, FRAMEWORKS, NAMED, WAYS, draw
from soak.worker import Order, Report, prepare, work

ALL_WAYS = tuple(dict.fromkeys(way for ways in WAYS.values() for way in ways))


def main() -> None:
    options = _options()
    # A file or a pipe has no width; the default of 80 columns would break tables.
    console = Console(width=None if sys.stdout.isatty() else 200)
    if options.call:
        sys.exit(_one(console, *options.call))
    order = Order(
        options.seed,
        options.calls,
        options.seconds,
        options.framework,
        options.device,
        tuple(options.op),
        tuple(options.way),
        options.eager,
    )
    start = time.monotonic()
    with _Show(console, order) as display:
        if options.processes > 1:
            reports = crew.run(order, options.processes, display.show, display.stopped)
        else:
            faulthandler.enable()
            for missing in prepare(order):
                console.print(f"Not available: {missing}", highlight=False)
            begin = (lambda number: print(number, flush=True)) if options.trace else (lambda number: None)
            reports = [work(order, 0, 1, lambda one: display.show([one]), begin, display.stopped)]
    judged = options.eager and not options.trace
    report.show(console, reports, time.monotonic() - start, judged)
    if not report.total(reports):
        sys.exit("Nothing was called")
    sys.exit(1 if report.problems(reports, judged) or any(one.failures for one in reports) else 0)


def _one(console: Console, seed: int, number: int) -> int:
    from soak import running

    plan = draw(seed, number)
    print(plan)
    prepare(Order(seed, None, None, tuple(FRAMEWORKS), (plan.device,), (), ()))
    if not running.side(plan.framework, plan.device):
        sys.exit(f"{plan.framework} on {plan.device} is not available")
    failure = running.attempt(plan)
    print(f"{failure.sentence}\n{failure.program}" if failure else "Right")
    return 1 if failure else 0


class _Show:
    """A bar on a terminal, else a line every ten seconds. The first Ctrl-C ends the calls, the second the program."""

    def __init__(self, console: Console, order: Order) -> None:
        self.order, self.start, self.printed_at, self.is_stopped = order, time.monotonic(), time.monotonic(), False
        columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.console = console

    def __enter__(self) -> _Show:
        self.before = signal.signal(signal.SIGINT, self._interrupt)
        self.bar.start()
        self.task = self.bar.add_task("starting", total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
        signal.signal(signal.SIGINT, self.before)

    def _interrupt(self, *_: object) -> None:
        if self.is_stopped:
            raise KeyboardInterrupt
        self.is_stopped = True

    def stopped(self) -> bool:
        return self.is_stopped

    def show(self, reports: list[Report]) -> None:
        calls, seconds = sum(one.count for one in reports), time.monotonic() - self.start
        memory = sum(one.memory[-1].process for one in reports if one.memory and not one.done)
        shares = [done / most for done, most in ((calls, self.order.calls), (seconds, self.order.seconds)) if most]
        text = (
            f"{calls:,} calls, {calls / seconds:,.0f} a second, {sum(len(one.failures) for one in reports)} failed, "
            f"{memory / 2**30:.1f} GiB"
        )
        self.bar.update(self.task, completed=max(shares, default=0.0), description=text)
        if not self.console.is_terminal and time.monotonic() - self.printed_at > 10:
            self.console.print(f"{seconds:.0f} s: {text}", highlight=False)
            self.printed_at = time.monotonic()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="at most; by default 60, or as long as --calls take")
    parser.add_argument("--calls", type=int, help="at most, of all processes together")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--processes", type=int, default=max(1, cores - 2), help="by default one for each core but two; 1 is this one"
    )
    frameworks = tuple(FRAMEWORKS)
    parser.add_argument("--framework", type=_of(frameworks), default=frameworks, help="torch, tf, jax or all")
    parser.add_argument("--device", type=_of(DEVICES), default=DEVICES, help="cpu, cuda or all")
    parser.add_argument("--op", action="append", default=[], choices=NAMED, help="this operator; may be given again")
    parser.add_argument("--way", action="append", default=[], choices=ALL_WAYS, help="may be given again")
    parser.add_argument(
        "--eager", action="store_true", help="no call that caches traces or compiled code; memory is judged"
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="with one process: print the number of each call before it; memory is not judged",
    )
    parser.add_argument("--call", type=_call, metavar="SEED:NUMBER", help="makes this call only")
    options = parser.parse_args()
    if options.calls is None and options.seconds is None:
        options.seconds = 60.0
    return options


def _of(names: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        if text not in (*names, "all"):
            raise argparse.ArgumentTypeError(f"one of {', '.join((*names, 'all'))}; got {text}")
        return names if text == "all" else (text,)

    return parse


def _call(text: str) -> tuple[int, int]:
    seed, number = map(int, text.split(":"))
    return seed, number


if __name__ == "__main__":
    main()
