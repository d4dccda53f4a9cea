"""Checks of a program in tests/programs/: each runs, even if others raise."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

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


@contextlib.contextmanager
def refused(kind: type[Exception] | tuple[type[Exception], ...], sentence: str) -> Iterator[None]:
    """The body raises an error of this kind with this message."""
    try:
        yield
    except kind as error:
        assert str(error) == sentence, error
    else:
        raise AssertionError(sentence)


def names_added_in_threads(library: Any, descriptor: Any, meanwhile: Callable[[], None] = lambda: None) -> list[str]:
    """The names of the operators that a binding's table gets if eight threads add them, of which one succeeds."""
    names, messages = [], []
    library.for_each(lambda operator: names.append(operator.name))
    built_in = len(names)

    def add() -> None:
        try:
            library.add(descriptor)
        except ValueError as error:
            messages.append(str(error))

    in_threads(add, meanwhile)
    assert messages == [f"fusedops: an operator is already named like {names[built_in]}"] * 7, messages
    return names[built_in:]


def in_threads(function: Callable[[], None], meanwhile: Callable[[], None] = lambda: None) -> None:
    """Eight calls in parallel; `meanwhile` is called until all have returned."""
    threads = [threading.Thread(target=function) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        meanwhile()
    for thread in threads:
        thread.join()
