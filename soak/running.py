"""One call, from its plan to its failure."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from soak import program
from soak.call import THREADS, Call, Wrong, build
from soak.plan import Plan
from tests.helpers.frameworks import backend
from tests.helpers.numerics import assert_same_bits

# Ways that run only the operators' kernels, with the same bits in all frameworks -> the other framework's way.
SAME_BITS = {
    "forward": "forward",
    "inference mode": "forward",
    "backward": "backward",
    "vjp": "backward",
    "threads": "backward",
    "compiled": "backward",
    "graph": "backward",
    "XLA": "backward",
}


@dataclass(frozen=True)
class Failure:
    plan: Plan
    kind: str
    sentence: str
    program: str


@functools.cache
def side(framework: str, device: str) -> Any:
    """The framework's Side on this device; None if unavailable."""
    found = backend(framework, device)
    if isinstance(found, str):
        return None
    return program.SIDES[framework].Side(found)


def attempt(plan: Plan, compare: bool = True) -> Failure | None:
    """Makes the call. `compare`: True if another framework may be used as well."""
    call = build(plan)
    try:
        results = _results(call, plan.framework, call.way, 2 if call.way in SAME_BITS else 1)
        call.check(results[0])
    except Wrong as wrong:
        return Failure(plan, "value", str(wrong), program.value_program(call, wrong.check))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return Failure(plan, type(error).__name__, text, program.value_program(call, ""))
    try:
        for again in results[1:]:
            _assert_same(call, again, results[0])
    except AssertionError as error:
        return Failure(plan, "repetition", f"the same call again: {error}", program.repetition_program(call))
    other = "tf" if plan.framework == "torch" else "torch"
    if not (compare and plan.is_cross_checked and call.way in SAME_BITS and side(other, plan.device)):
        return None
    if not (call.spec.bits_follow_from_values or call.has_plain_tensors):
        return None
    ways = {plan.framework: call.way, other: SAME_BITS[call.way]}
    count = len(call.expected) // (THREADS if call.way == "threads" else 1)
    try:
        (others,) = _results(call, other, ways[other], 1)
        _assert_same(call, results[0][:count], others)
    except Exception as error:
        text = f"{other} beside {plan.framework}: {type(error).__name__}: {error}"
        return Failure(plan, "parity", text, program.parity_program(call, ways, count))
    return None


def crash_text(plan: Plan, what: str) -> str:
    """The failure text of a call that ended its process."""
    call = build(plan)
    return f"{plan}: {what}\n{program.value_program(call, '')}"


def _results(call: Call, framework: str, way: str, times: int) -> list[list[np.ndarray]]:
    framework_side = side(framework, call.plan.device)
    framework_side.prepare(call)
    namespace = dict(framework_side.globals)
    namespace["f"] = _function(framework, program.function_code(call, framework, way))
    for name, x in call.tensors.items():
        namespace[name] = framework_side.tensor(call, name, x, way)
    exec(_compiled(program.run_code(call, framework, way)), namespace)
    runs = [list(namespace["run"]()) for _ in range(times)]
    fetched = framework_side.fetch([x for results in runs for x in results])
    count = len(runs[0])
    return [fetched[i * count : (i + 1) * count] for i in range(times)]


def _assert_same(call: Call, got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for what, left, right in zip(call.expected, got, expected, strict=False):
        assert_same_bits(left, right, what.label)


@functools.cache
def _compiled(code: str) -> Any:
    return compile(code, "<soak>", "exec")


@functools.cache
def _function(framework: str, code: str) -> Any:
    """The function of this code, cached so that each function is compiled once."""
    globals_of = next(found.globals for device in ("cpu", "cuda") if (found := side(framework, device)))
    return eval(code, dict(globals_of))
