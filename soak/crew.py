"""The worker processes and their reports. A process that dies is reported with its call and replaced."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from soak.plan import draw
from soak.worker import Order, Report, prepare, work

FOLDER = Path(__file__).parent.parent / "build" / "soak"
TIMEOUT = 300.0  # seconds in one call, after which a process is killed
TENSORFLOW_THREADS = (0, 1, 2, 4)
_spawn = multiprocessing.get_context("spawn")


def run(
    order: Order, processes: int, show: Callable[[list[Report]], None], stopped: Callable[[], bool]
) -> list[Report]:
    """Runs the processes until all are done."""
    slots = [_Slot(order, i, processes) for i in range(processes)]
    try:
        while not all(slot.is_done for slot in slots):
            time.sleep(0.2)
            for slot in slots:
                slot.poll(stopped())
            show([report for slot in slots for report in slot.reports])
    finally:
        for slot in slots:
            slot.end()
    return [report for slot in slots for report in slot.reports]


class _Slot:
    """One process and its replacements."""

    def __init__(self, order: Order, index: int, count: int) -> None:
        calls = order.calls if order.calls is None else (order.calls + count - 1 - index) // count
        threads = TENSORFLOW_THREADS[index % len(TENSORFLOW_THREADS)]
        self.order = replace(order, calls=calls, tensorflow_threads=threads)
        self.step, self.index = count, index
        self.number = _spawn.RawValue("q", -1)
        self.stop = _spawn.RawValue("b", 0)
        self.reports: list[Report] = []
        self.start = time.monotonic()
        self._begin(index)

    @property
    def is_done(self) -> bool:
        return self.reports[-1].done

    def _begin(self, first: int) -> None:
        """Starts a process at call number `first`, with the calls and time left by its predecessors."""
        self.first = first
        order = self.order
        if order.calls is not None:
            order = replace(order, calls=order.calls - sum(report.count for report in self.reports))
        if order.seconds is not None:
            order = replace(order, seconds=order.seconds - (time.monotonic() - self.start))
        self.reports.append(Report())
        self.at, self.since = -1, time.monotonic()
        self.number.value = first - self.step
        self.connection, theirs = _spawn.Pipe(duplex=False)
        arguments = (order, first, self.step, theirs, self.number, self.stop, self.log)
        self.process = _spawn.Process(target=_child, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    @property
    def log(self) -> Path:
        return FOLDER / f"process-{self.index}.log"

    def poll(self, stop: bool) -> None:
        if self.is_done:
            return
        self.stop.value = stop
        ended = False
        try:
            while self.connection.poll():
                self.reports[-1] = self.connection.recv()
        except (EOFError, OSError):
            ended = True
        if self.is_done:
            return
        if self.number.value != self.at:
            self.at, self.since = self.number.value, time.monotonic()
        if time.monotonic() - self.since > TIMEOUT:
            self.process.kill()
            self.process.join()
            self._replace(f"no end after {TIMEOUT:.0f} s")
        elif ended:
            self.process.join()
            self._replace(f"its process ended with status {self.process.exitcode}")

    def _replace(self, what: str) -> None:
        from soak.running import crash_text

        number = self.number.value
        if number < self.first:  # nothing was called yet
            self.reports[-1].problems.append(f"Process {self.index}: {what} before its first call\n{self._log_tail()}")
            self.reports[-1].done = True
            return
        plan, report = draw(self.order.seed, number), self.reports[-1]
        report.calls[plan.key] += 1
        report.failures.append((plan.key, f"{crash_text(plan, what)}\n{self._log_tail()}"))
        self._begin(number + self.step)

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def end(self) -> None:
        if self.process.is_alive():
            self.process.join(timeout=0 if not self.is_done else 30)
        if self.process.is_alive():
            self.process.kill()


def _child(order: Order, first: int, step: int, connection: Connection, number: Any, stop: Any, log: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its children through `stop`
    log.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    faulthandler.enable(sys.stderr)

    def begin(value: int) -> None:
        number.value = value

    prepare(order)
    work(order, first, step, connection.send, begin, lambda: bool(stop.value))
    connection.close()
