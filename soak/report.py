"""The tables at the end, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from soak.plan import Key
from soak.worker import Report, Sample

NAMES = {"torch": "PyTorch", "tf": "TensorFlow", "jax": "JAX", "cpu": "CPU", "cuda": "GPU"}
WARMUP = 0.2  # fraction of a process's calls after which all caches are filled
# Memory growth allowed to a process after 60% of its calls, in bytes: in total for the allocators, and per call.
NOISE, LEAK = 64 * 2**20, 64


def show(console: Console, reports: Sequence[Report], seconds: float, judged: bool) -> None:
    """`judged`: True if excessive memory growth is a problem."""
    calls = total(reports)
    failed = Counter(key for report in reports for key, _ in report.failures)
    for report in reports:
        for _, text in report.failures:
            console.print(text, markup=False, highlight=False, soft_wrap=True)
            console.print()
    console.print(
        f"{calls.total():,} calls in {seconds:.0f} s, {calls.total() / max(seconds, 1e-9):,.0f} a second, "
        f"{failed.total()} failed\n",
        highlight=False,
    )
    for title, place in (("way", 2), ("operator", 3)):
        console.print(_table(title, calls, failed, place))
    console.print(_memory_table(reports))
    if not judged:
        console.print("Memory is judged only with --eager and without --trace", highlight=False)
    for text in problems(reports, judged):
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def total(reports: Sequence[Report]) -> Counter[Key]:
    return sum((report.calls for report in reports), Counter())


def problems(reports: Sequence[Report], judged: bool) -> list[str]:
    """Sentences on problems other than failed calls."""
    found = [text for report in reports for text in report.problems]
    for name, size in _memories(reports).items() if judged else ():
        for report in reports:
            points = _memory_points(report)
            if not points:
                continue
            _, middle, end = points
            allowed = (NOISE if name == "process" else 0) + LEAK * (end.calls - middle.calls)
            if size(end) - size(middle) > allowed:
                found.append(
                    f"Memory ({name}) grew from {_mib(size(middle))} after {middle.calls} calls of a process to "
                    f"{_mib(size(end))} after {end.calls}"
                )
    return found


def _table(title: str, calls: Counter[Key], failed: Counter[Key], place: int) -> Table:
    sides = sorted({key[:2] for key in calls}, key=lambda side: [*map([*NAMES].index, side)])
    table = Table(title, box=box.MARKDOWN)
    for framework, device in sides:
        table.add_column(f"{NAMES[framework]}, {NAMES[device]}", justify="right")
    table.add_column("failed", justify="right")

    def count(counter: Counter[Key], value: str, side: tuple[str, ...] | None = None) -> int:
        return sum(n for key, n in counter.items() if key[place] == value and side in (None, key[:2]))

    for value in sorted({key[place] for key in calls}):
        table.add_row(value, *(f"{count(calls, value, side):,}" for side in sides), str(count(failed, value)))
    return table


def _memories(reports: Sequence[Report]) -> dict[str, Callable[[Sample], int]]:
    frameworks = sorted({name for report in reports for sample in report.memory for name in sample.gpu}, reverse=True)
    gpu = {f"{NAMES[name]}'s tensors on the GPU": lambda sample, name=name: sample.gpu[name] for name in frameworks}
    return {"process": lambda sample: sample.process, **gpu}


def _memory_points(report: Report) -> tuple[Sample, Sample, Sample] | None:
    """Memory after the warm-up, after 60% and at the end of a process's calls."""
    if not report.memory or not report.count:
        return None

    def after(fraction: float) -> Sample:
        return next(sample for sample in report.memory if sample.calls >= fraction * report.memory[-1].calls)

    return after(WARMUP), after(0.6), report.memory[-1]


def _memory_table(reports: Sequence[Report]) -> Table:
    """The summed memory of all processes."""
    table = Table("memory of all processes", box=box.MARKDOWN)
    for point in (f"after {WARMUP:.0%} of the calls", "after 60%", "at the end"):
        table.add_column(point, justify="right")
    found = [points for points in map(_memory_points, reports) if points]
    for name, size in _memories(reports).items():
        table.add_row(name, *(_mib(sum(size(points[i]) for points in found)) for i in range(3)))
    return table


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
