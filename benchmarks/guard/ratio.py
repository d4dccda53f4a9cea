"""The ratios that the guard compares: fusedops's time over the framework's own on the CPU.

Both take turns on one thread, and the clock is the CPU time of the process. Other load on the cores slows both down, so
ratios are stable although times are not. Tensors have half a MiB, since traffic in a shared cache or to memory does not
slow both down equally. Slowdowns in memory traffic or with many threads are found by `make bench` only.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.cases.case import CALLS, Case, bandwidth_case, product
from benchmarks.cases.products import PRODUCTS
from benchmarks.measuring.timing import Call, Effort, take_turns
from benchmarks.operators import OPERATORS, OVER_ROWS

# Must be set before a framework is imported.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    # Makes glibc reuse freed memory: fresh memory costs a page fault every 4 KiB.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}
EFFORT = Effort(round=0.5e-3, total=0.4, min_rounds=25, max_rounds=300)
VARIANTS = ("forward", "backward")
OF_CALLS = {"torch": "addcmul", "tf": "tf.add"}  # framework -> baseline of a call on 16 floats


def pairs(framework: str) -> Iterator[tuple[Case, str]]:
    """Pairs of a case of fusedops and the baseline it is compared with."""
    elementwise = (OPERATORS["axpby"], OPERATORS["relu"])
    for operator in elementwise:
        yield bandwidth_case("call", "cpu", operator.name, "forward", "float32", (16,)), OF_CALLS[framework]
    for operator in (*elementwise, *(x for x in OVER_ROWS if not x.own and not x.random)):
        section = "cpu" if operator.elementwise else "cpu-rows"
        for variant in VARIANTS:
            yield bandwidth_case(section, "cpu", operator.name, variant, "float32", operator.shape(128, 1024)), "eager"
    for variant in PRODUCTS:
        yield product("cpu", "cpu", variant, "float32", (256, 256, 256)), "eager"


def measured(side: Any, case: Case, against: str) -> float:
    """The median over the rounds of the ratio in each round. `side`: the framework's module of implementations."""
    with side.on(case.device):
        builds = side.implementations(case, side.inputs(case))
        both = {name: replace(builds[name](), clock=_cpu_clock) for name in ("fusedops", against)}
        samples = take_turns(both, EFFORT)
    return statistics.median(a / b for a, b in zip(samples["fusedops"], samples[against], strict=True))


def name_of(case: Case, against: str) -> str:
    name = f"{case.operator} {case.variant} / {against}"
    return f"call of {name}" if case.section in CALLS else name


def use_one_thread() -> None:
    os.environ.update(ENVIRONMENT)


def _cpu_clock(call: Call, count: int) -> float:
    start = time.process_time()
    for _ in itertools.repeat(None, count):
        call()
    return (time.process_time() - start) / count
