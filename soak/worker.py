"""One process that makes many calls, and its memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from soak.plan import CACHING, WAYS, Key, Plan, draw


@dataclass(frozen=True)
class Order:
    """The calls to make."""

    seed: int
    calls: int | None
    seconds: float | None
    frameworks: tuple[str, ...]
    devices: tuple[str, ...]
    operators: tuple[str, ...]  # empty: all
    ways: tuple[str, ...]  # empty: all
    eager: bool = False  # True to exclude plan.CACHING
    tensorflow_threads: int = 0  # 0: TensorFlow's default

    def has(self, plan: Plan) -> bool:
        return (
            plan.framework in self.frameworks
            and plan.device in self.devices
            and (not self.operators or plan.operator in self.operators)
            and self.has_way(plan.framework, plan.way)
        )

    def has_way(self, framework: str, way: str) -> bool:
        return (not self.ways or way in self.ways) and not (self.eager and (framework, way) in CACHING)


@dataclass
class Sample:
    """Memory after `calls` calls, in bytes: of the process, and of each framework's tensors on the GPU."""

    calls: int
    process: int
    gpu: dict[str, int]


@dataclass
class Report:
    """The results of a worker so far."""

    calls: Counter[Key] = field(default_factory=Counter)
    failures: list[tuple[Key, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    memory: list[Sample] = field(default_factory=list)
    done: bool = False

    @property
    def count(self) -> int:
        return self.calls.total()


def prepare(order: Order) -> list[str]:
    """Imports the frameworks. Returns those that are unavailable."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    from soak import running

    missing = []
    if "tf" in order.frameworks and order.tensorflow_threads:
        with contextlib.suppress(ImportError):
            from tests.helpers.frameworks import import_tensorflow

            import_tensorflow().config.threading.set_intra_op_parallelism_threads(order.tensorflow_threads)
    for framework in order.frameworks:
        for device in order.devices:
            if not running.side(framework, device):
                missing.append(f"{framework} on {device}")
    return missing


def work(
    order: Order,
    first: int,
    step: int,
    say: Callable[[Report], None],
    begin: Callable[[int], None],
    stopped: Callable[[], bool],
) -> Report:
    """Makes every step-th call from number `first` on. Passes each number to `begin` and the report to `say`."""
    from soak import running
    from soak.shrink import shrunk

    _return_freed_memory()
    warnings.simplefilter("ignore")  # NumPy and the frameworks warn of values that the checks judge anyway
    report = Report()
    compare = len(order.frameworks) > 1
    start = reported = measured = time.monotonic()
    gc.collect()
    gc.freeze()  # exclude imported modules from every later collection
    number = first - step
    possible = any(
        running.side(framework, device) and any(order.has_way(framework, way) for way in WAYS[framework])
        for framework in order.frameworks
        for device in order.devices
    )
    while possible and not stopped() and (order.calls is None or report.count < order.calls):
        now = time.monotonic()
        if order.seconds is not None and now - start >= order.seconds:
            break
        if now - measured > 2 or not report.memory:
            report.memory.append(_memory(order, report.count))
            measured = now
        if now - reported > 0.5:
            say(report)
            reported = now
        number += step
        plan = draw(order.seed, number)
        if not order.has(plan) or not running.side(plan.framework, plan.device):
            continue
        begin(number)
        failure = running.attempt(plan, compare)
        report.calls[plan.key] += 1
        if failure:
            small = shrunk(failure, lambda plan: running.attempt(plan, compare))
            report.failures.append((plan.key, _described(order, plan, failure, small)))
            say(report)
    report.memory.append(_memory(order, report.count))
    report.done = True
    say(report)
    return report


def _described(order: Order, plan: Plan, failure: Any, small: Any) -> str:
    threads = order.tensorflow_threads
    where = f"{plan} ({threads} threads in TensorFlow)" if threads and plan.framework == "tf" else str(plan)
    return f"{where}: {failure.sentence}\nSimplest: {small.sentence}\n{small.program}"


def _return_freed_memory() -> None:
    """Makes glibc return the memory of large arrays to the system: its growing free lists would look like a leak."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(-3, 2**20)  # M_MMAP_THRESHOLD; setting it disables its dynamic adjustment


def _memory(order: Order, calls: int) -> Sample:
    from soak import running

    for framework in order.frameworks if order.eager else ():
        side = next(filter(None, (running.side(framework, device) for device in order.devices)), None)
        if side:
            side.clear_caches()
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    sides = {framework: running.side(framework, "cuda") for framework in order.frameworks if "cuda" in order.devices}
    gpu = {framework: side.memory() for framework, side in sides.items() if side}
    return Sample(calls, pages * os.sysconf("SC_PAGE_SIZE"), gpu)
