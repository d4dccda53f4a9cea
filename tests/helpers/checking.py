"""Checks of a program in tests/programs/: each runs, even if others raise."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

CHECKS: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


def failed() -> dict[str, str]:
    """Runs the checks; returns the failed ones by name, with their errors."""
    raised = {}
    for function in CHECKS:
        try:
            function()
        except Exception:
            raised[function.__name__] = traceback.format_exc()
    return raised


def in_threads(function: Callable[[], None], meanwhile: Callable[[], None] = lambda: None) -> None:
    """Eight calls in parallel; `meanwhile` is called until all have returned."""
    threads = [threading.Thread(target=function) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        meanwhile()
    for thread in threads:
        thread.join()
