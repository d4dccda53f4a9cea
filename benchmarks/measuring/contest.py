"""One row of the tables: all contenders on the same inputs, their outputs checked before a time counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.cases.case import PUBLISHED, Case
from benchmarks.cases.selection import COMPILED
from benchmarks.measuring.reference import Expected, expected, problem_with
from benchmarks.measuring.timing import Build, Contender, Effort, Failed, take_turns
from benchmarks.operators import OPERATORS
from benchmarks.results.schema import Row


def measured(side: Any, case: Case, effort: Effort, quick: bool, crashed: Mapping[str, str] | None = None) -> Row:
    """A row; `crashed`: what was wrong with contenders that are left out."""
    about = {"bytes": case.bytes, "flops": case.flops, "cache": case.cache}
    row: Any = {"key": case.key, **asdict(case), **about, "contenders": {}}
    if case.key in PUBLISHED:
        row["published"] = PUBLISHED[case.key]
    right: dict[str, Contender] = {}

    def failed(name: str, problem: str) -> None:
        row["contenders"][name]["problem"] = problem
        if not is_usable(side, case.device):
            row["contenders"][name]["crashed"] = True
            raise RuntimeError(f"{name} has left the GPU unusable: {problem}")

    try:
        with side.on(case.device):
            values = side.inputs(case)
            compared = values and not OPERATORS[case.operator].random
            wanted = expected(side, case, values) if compared else None
            for name, build in side.contenders(case, values).items():
                if quick and name in COMPILED:
                    continue
                if crashed and name in crashed:
                    row["contenders"][name] = {"work": case.work, "problem": crashed[name], "crashed": True}
                    continue
                contender, outputs, problem = tried(side, case.device, build)
                if contender and contender.checked and wanted and not problem:
                    problem = _problem(side, case, outputs, wanted)
                del outputs
                row["contenders"][name] = {"work": (contender and contender.work) or case.work, "problem": None}
                if problem:
                    failed(name, problem)
                elif contender:
                    right[name] = contender
            for name, samples in _contest(right, effort, failed).items():
                found = row["contenders"][name]
                found["samples"] = samples
                share = getattr(right[name].clock, "host_share", None)
                if share is not None:
                    found["host_share"] = share
            if case.device == "cuda":
                for name in right:
                    if name != "copy":
                        _probe(side, case, right[name], row["contenders"][name])
    except Exception as error:  # out of memory, say: the other cases can still be measured
        row["problem"] = _sentence(error)
    return row


def is_usable(side: Any, device: str) -> bool:
    """False once a kernel has left the GPU in a state in which every later call of this process fails."""
    try:
        if device == "cuda":
            side.synchronize()
    except Exception:
        return False
    return True


def tried(side: Any, device: str, build: Build) -> tuple[Contender | None, Any, str | None]:
    """A contender, what its first call returned, and what went wrong: one that fails must not end the run."""
    try:
        contender = build()
        outputs = contender.call()
        if device == "cuda":
            side.synchronize()  # or a kernel that fails would be taken for one of the next contender's
        return contender, outputs, None
    except Exception as error:
        return None, None, _sentence(error)


def _contest(right: dict[str, Contender], effort: Effort, failed: Callable[[str, str], None]) -> dict[str, list[float]]:
    """Again without a contender that fails while it is timed."""
    while True:
        try:
            return take_turns(right, effort)
        except Failed as problem:
            del right[problem.name]
            failed(problem.name, _sentence(problem.error))


def _probe(side: Any, case: Case, contender: Contender, found: dict[str, Any]) -> None:
    """How much memory a call takes. A time that was measured counts without."""
    try:
        before, most = side.memory(contender.once or contender.call)
    except Exception:
        return
    found["memory"] = most - before
    if case.is_model:
        found["peak"] = most if contender.held is None else contender.held + most - before


def _problem(side: Any, case: Case, outputs: Any, wanted: Expected) -> str | None:
    """Why a contender's time does not count."""
    try:
        outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        return problem_with(side, case, outputs, wanted)
    except Exception as error:
        return _sentence(error)


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]
