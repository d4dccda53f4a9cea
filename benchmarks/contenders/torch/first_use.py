"""The first use of an expression, from its text to the result: compiled then, or found where an earlier process has
kept it; and that of PyTorch's own ways to compile a formula.

Run as a program, it is that earlier process. Arguments: the key of a case, and names for its expression.
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
from benchmarks.contenders.torch.functions import FUNCTIONS, matmul
from benchmarks.measuring.timing import Build, Clock, Contender
from benchmarks.operators.layouts import expression, formula

MOST_CALLS = 20  # of a contender: those of the most rounds, and a few before and behind them
JITERATOR = {
    "biased_gate": """
template <typename T> T {name}(T x, T bias, T up) {{
  const float h = float(x) + float(bias);
  return T(0.5f * h * (1.f + tanhf(0.7978845608028654f * (h + 0.044715f * h * h * h))) * float(up));
}}""",
}


def contenders(case: Case, values: Mapping[str, Any], clock: Callable[[], Clock]) -> dict[str, Build]:
    """Another name each time, or there would be nothing to compile."""
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
        return lambda: Contender(partial(_next, function, names()), clock())

    result = {"fusedops": build(once)}
    if case.device == "cuda":
        result["fusedops, from the cache"] = build(once, partial(_kept, case))
        result["compiled"] = build(compiled)
        if case.operator in JITERATOR:
            result["jiterator"] = build(jiterator)
    return result


def _next(function: Callable[[str], torch.Tensor], names: Iterator[str]) -> torch.Tensor:
    return function(next(names))


def _names() -> Iterator[str]:
    return (f"first_{i}_{time.time_ns()}" for i in itertools.count())


def _kept(case: Case) -> Iterator[str]:
    """Names of which another process has compiled the expression."""
    names = list(itertools.islice(_names(), MOST_CALLS))
    subprocess.run([sys.executable, "-m", __name__, case.key, *names], check=True)
    return iter(names)


def _main(key: str, *names: str) -> None:
    from benchmarks.cases import all_cases
    from benchmarks.contenders import side_of

    case = next(case for case in all_cases() if case.key == key)
    inputs = side_of("torch").inputs(case).values()
    for name in names:
        expression(fo, case, name)(*inputs)
    torch.cuda.synchronize()


if __name__ == "__main__":
    _main(*sys.argv[1:])
