"""The first use of an expression, from its text to the result: compiled, or loaded from the disk cache; and the first
use of PyTorch's own ways to compile a formula.

Run as a program, this module fills the disk cache. Arguments: the key of a case, and names for its expression.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch._inductor.config as inductor

import fusedops.torch as fo
from benchmarks.cases.case import Case
from benchmarks.implementations.torch.functions import FUNCTIONS, matmul
from benchmarks.measuring.timing import Build, Clock, Implementation
from benchmarks.operators.layouts import expression, formula

MAX_CALLS = 20  # calls of an implementation: the maximum number of rounds, and a few before and after
JITERATOR = {
    "biased_gate": """
template <typename T> T {name}(T x, T bias, T up) {{
  const float h = float(x) + float(bias);
  return T(0.5f * h * (1.f + tanhf(0.7978845608028654f * (h + 0.044715f * h * h * h))) * float(up));
}}""",
}


def implementations(case: Case, values: Mapping[str, Any], clock: Callable[[], Clock]) -> dict[str, Build]:
    """The implementations. Each call uses a new name, since a known expression would not be compiled."""
    inputs = tuple(values.values())

    def once(name: str) -> torch.Tensor:
        result: torch.Tensor = expression(fo, case, name)(*inputs)
        return result

    def jiterator(name: str) -> torch.Tensor:
        function = torch.cuda.jiterator._create_jit_fn(JITERATOR[case.operator].format(name=name))
        result: torch.Tensor = function(*inputs)
        return result

    def compiled(name: str) -> torch.Tensor:
        torch.compiler.reset()
        with inductor.patch(force_disable_caches=True):
            result: torch.Tensor = torch.compile(formula(FUNCTIONS, matmul, case))(*inputs)
        return result

    def build(function: Callable[[str], torch.Tensor], names: Callable[[], Iterator[str]] = _names) -> Build:
        return lambda: Implementation(partial(_next, function, names()), clock())

    result = {"fusedops": build(once)}
    if case.device == "cuda":
        result["fusedops, from the cache"] = build(once, partial(_cached_names, case))
        result["compiled"] = build(compiled)
        if case.operator in JITERATOR:
            result["jiterator"] = build(jiterator)
    return result


def _next(function: Callable[[str], torch.Tensor], names: Iterator[str]) -> torch.Tensor:
    return function(next(names))


def _names() -> Iterator[str]:
    return (f"first_{i}_{time.time_ns()}" for i in itertools.count())


def _cached_names(case: Case) -> Iterator[str]:
    """Names for which another process has compiled the expression."""
    names = list(itertools.islice(_names(), MAX_CALLS))
    subprocess.run([sys.executable, "-m", __name__, case.key, *names], check=True)
    return iter(names)


def _main(key: str, *names: str) -> None:
    from benchmarks.cases import all_cases
    from benchmarks.implementations import side_of

    case = next(case for case in all_cases() if case.key == key)
    inputs = side_of("torch").inputs(case).values()
    for name in names:
        expression(fo, case, name)(*inputs)
    torch.cuda.synchronize()


if __name__ == "__main__":
    _main(*sys.argv[1:])
