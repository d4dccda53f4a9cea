"""Measures one row: all implementations on the same inputs, with outputs checked before times count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.cases.case import PUBLISHED, Case
from benchmarks.cases.selection import COMPILED
from benchmarks.measuring.reference import Expected, expected, problem_with
from benchmarks.measuring.timing import Build, Effort, Failed, Implementation, take_turns
from benchmarks.operators import OPERATORS
from benchmarks.results.schema import Row


def measured(side: Any, case: Case, effort: Effort, quick: bool, crashed: Mapping[str, str] | None = None) -> Row:
    """Measures a case. `crashed`: implementations to leave out, with their problems."""
    about = {"bytes": case.bytes, "flops": case.flops, "cache": case.cache}
    row: Any = {"key": case.key, **asdict(case), **about, "implementations": {}}
    if case.key in PUBLISHED:
        row["published"] = PUBLISHED[case.key]
    right: dict[str, Implementation] = {}

    def failed(name: str, problem: str) -> None:
        row["implementations"][name]["problem"] = problem
        if not is_usable(side, case.device):
            row["implementations"][name]["crashed"] = True
            raise RuntimeError(f"{name} has left the GPU unusable: {problem}")

    try:
        with side.on(case.device):
            values = side.inputs(case)
            compared = values and not OPERATORS[case.operator].random
            wanted = expected(side, case, values) if compared else None
            for name, build in side.implementations(case, values).items():
                if quick and name in COMPILED:
                    continue
                if crashed and name in crashed:
                    row["implementations"][name] = {"work": case.work, "problem": crashed[name], "crashed": True}
                    continue
                implementation, outputs, problem = try_build(side, case.device, build)
                if implementation and implementation.checked and wanted and not problem:
                    problem = _problem(side, case, outputs, wanted)
                del outputs
                row["implementations"][name] = {
                    "work": (implementation and implementation.work) or case.work,
                    "problem": None,
                }
                if problem:
                    failed(name, problem)
                elif implementation:
                    right[name] = implementation
            for name, samples in _contest(right, effort, failed).items():
                found = row["implementations"][name]
                found["samples"] = samples
                share = getattr(right[name].clock, "host_share", None)
                if share is not None:
                    found["host_share"] = share
            if case.device == "cuda":
                for name in right:
                    if name != "copy":
                        _measure_memory(side, case, right[name], row["implementations"][name])
    except Exception as error:  # such as out of memory: the other cases can still be measured
        row["problem"] = _sentence(error)
    return row


def is_usable(side: Any, device: str) -> bool:
    """True unless a kernel left the GPU in a state in which all later calls of this process fail."""
    try:
        if device == "cuda":
            side.synchronize()
    except Exception:
        return False
    return True


def try_build(side: Any, device: str, build: Build) -> tuple[Implementation | None, Any, str | None]:
    """An implementation, the result of its first call, and its problem, if any: a failure must not end the run."""
    try:
        implementation = build()
        outputs = implementation.call()
        if device == "cuda":
            side.synchronize()  # attributes a failing kernel to this implementation, not to the next one
        return implementation, outputs, None
    except Exception as error:
        return None, None, _sentence(error)


def _contest(
    right: dict[str, Implementation], effort: Effort, failed: Callable[[str, str], None]
) -> dict[str, list[float]]:
    """Times the implementations; starts again without an implementation that fails."""
    while True:
        try:
            return take_turns(right, effort)
        except Failed as problem:
            del right[problem.name]
            failed(problem.name, _sentence(problem.error))


def _measure_memory(side: Any, case: Case, implementation: Implementation, found: dict[str, Any]) -> None:
    """Adds the memory that a call takes. If measuring it fails, the times still count."""
    try:
        before, peak = side.memory(implementation.once or implementation.call)
    except Exception:
        return
    found["memory"] = peak - before
    if case.is_model:
        found["peak"] = peak if implementation.held is None else implementation.held + peak - before


def _problem(side: Any, case: Case, outputs: Any, wanted: Expected) -> str | None:
    """The problem of an implementation's outputs, if any; then its time does not count."""
    try:
        outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        return problem_with(side, case, outputs, wanted)
    except Exception as error:
        return _sentence(error)


def _sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]
