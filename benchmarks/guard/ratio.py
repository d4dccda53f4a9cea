"""fusedops's time over the framework's own on the CPU: what the guard compares, and how it measures.

Both take turns on one thread, and the clock is the CPU time of the process: whoever else keeps the cores busy slows
down both, and a ratio holds where no time does. Tensors have half a MiB, since traffic in a shared cache, or to memory,
does not slow down both alike. The price: what only memory or many threads make slow is for `make bench` to find.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from benchmarks.cases.case import CALLS, ROWS, Case, moving
from benchmarks.cases.rows import shape_of
from benchmarks.measuring.timing import Call, Effort, take_turns

# To be set before a framework is imported.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    # glibc keeps what is freed: fresh memory costs a page fault every 4 KiB.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}
EFFORT = Effort(round=0.5e-3, total=0.4, least_rounds=25, most_rounds=300)
VARIANTS = ("forward", "backward")
OF_CALLS = {"torch": "addcmul", "tf": "tf.add"}  # framework -> with what a call on 16 floats is compared
PRODUCT = (256, 256, 256)


def pairs(framework: str) -> Iterator[tuple[Case, str]]:
    """A case, and the contender that fusedops is compared with."""
    for operator in ("axpby", "relu"):
        yield moving("call", "cpu", operator, "forward", "float32", (16,)), OF_CALLS[framework]
    for operator in ("axpby", "relu", *ROWS):
        shape = shape_of(operator, 128, 1024)
        for variant in VARIANTS:
            section = "cpu-rows" if operator in ROWS else "cpu"
            yield moving(section, "cpu", operator, variant, "float32", shape), "eager"
    for variant in ("NN", "NT", "TN"):  # a product, and those of its backward
        yield Case("cpu", "cpu", "matmul", variant, "float32", PRODUCT, 2.0 * prod(PRODUCT), "FLOP"), "eager"


def measured(side: Any, case: Case, against: str) -> float:
    """The median, over the rounds, of the ratio within a round. `side` is the framework's module of contenders."""
    with side.on(case.device):
        builds = side.contenders(case, side.inputs(case))
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
