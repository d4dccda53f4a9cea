"""Steps on several GPUs: `python -m benchmarks --gpus 2`. Each module here lists its cases as `CASES: list[Case]`.

A case builds its implementations on every rank, and an implementation is a step that all ranks take together. They are
named as elsewhere: "fusedops", "eager" and "compiled" for PyTorch's own, "fusedops, compiled"; besides, "one GPU".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from benchmarks.cases import case
from benchmarks.operators.models import DISTRIBUTED


@dataclass(frozen=True)
class Case:
    name: str  # the computation, with its sizes on a GPU
    # Rank, number of ranks and "cuda" or "cpu" -> implementations, in the same order on all ranks. The process group of
    # all ranks is initialized, with NCCL or gloo. Sizes for "cpu" are small: tests measure them.
    setup: Callable[[int, int, str], Mapping[str, Callable[[], Any]]]
    goals: tuple[case.Goal, ...] = ()


def cases_of(module: str) -> list[Case]:
    """The cases of one module of this package."""
    return list(import_module(f"{__name__}.{module}").CASES)


def cases(world: int, device: str) -> Iterator[case.Case]:
    """All cases as entries of the tables. The work of each is one step."""
    for module in DISTRIBUTED:
        for own in cases_of(module):
            step = (1.0, "step", ("torch",), own.goals if device == "cuda" else ())
            yield case.Case(case.DISTRIBUTED, device, module, own.name, "", (world,), *step)
