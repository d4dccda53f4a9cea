"""A training step of a family's model before `convert`, after it, and with Liger's kernels: eager and compiled.

The model has few layers; its other numbers are the defaults of its config's class, which mostly are those of a released
model, of the smallest in many families. Each contender has a model of its own, over the same weights.
"""

from __future__ import annotations

import copy
import os
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch

import fusedops.torch as fo
from benchmarks.families.hugging_face import families, prepare
from benchmarks.families.inputs import inputs_of
from benchmarks.measuring.timing import Call, Contender, Effort, HostClock, take_turns

_TEXT = (1, 2048)  # sequences, tokens in each
_QUICK = (2, 16)
EFFORT = Effort(round=50e-3, total=3.0, least_calls=2)
QUICK = Effort(round=0.0, total=0.1, least_rounds=2, most_rounds=2)
LIGER = "Liger"
CONTENDERS = ("before", "converted", "before, compiled", "converted, compiled", LIGER)


def steps(task: str) -> dict[str, float]:
    """Seconds by contender.

    Args:
        task: a family's name, and the contenders that share a process, after a colon: `llama:before;converted`. Liger
            replaces functions for all models of the process, so that it has one of its own.
    """
    prepare()
    name, _, contenders = task.partition(":")
    cuda = torch.cuda.is_available()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    family = families()[name]
    model = family.released("cuda", "bfloat16") if cuda else family.build()
    inputs = inputs_of(model, _TEXT if cuda else _QUICK)
    model.train()
    calls = {name: _step(_BUILT[name](_sharing(model)), inputs) for name in contenders.split(";")}
    times = take_turns({name: Contender(call, _clock(cuda)) for name, call in calls.items()}, EFFORT if cuda else QUICK)
    return {name: statistics.median(samples) for name, samples in times.items()}


def tasks(names: list[str], compiled: bool) -> list[str]:
    shared = CONTENDERS[: 4 if compiled else 2]
    return [f"{name}:{';'.join(each)}" for name in names for each in (shared, (LIGER,))]


def line(name: str, times: Mapping[str, float]) -> str:
    """Of a table: milliseconds, and how many times as fast converted."""
    cells = [f"{times[each] * 1e3:.2f}" if each in times else "" for each in CONTENDERS]
    for before, after in (CONTENDERS[:2], CONTENDERS[2:4]):
        cells.append(f"{times[before] / times[after]:.2f}" if before in times and after in times else "")
    return f"| {name} | {' | '.join(cells)} |"


HEAD = f"| family | {' | '.join(CONTENDERS)} | times as fast | compiled |\n|" + " --- |" * (len(CONTENDERS) + 3)


def _sharing(model: Any) -> Any:
    return copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})


def _with_liger(model: Any) -> Any:
    import_module("liger_kernel.transformers")._apply_liger_kernel_to_instance(model=model)
    return model


_CONVERT = partial(fo.convert, verbose=False)
_COMPILE = partial(torch.compile, dynamic=False)
_BUILT: dict[str, Callable[[Any], Any]] = {
    "before": lambda model: model,
    "converted": _CONVERT,
    "before, compiled": _COMPILE,
    "converted, compiled": lambda model: _COMPILE(_CONVERT(model)),
    LIGER: _with_liger,
}


def _step(model: Any, inputs: Mapping[str, torch.Tensor]) -> Call:
    weights = [weight for weight in model.parameters() if weight.requires_grad]

    def run() -> Any:
        found = model(**inputs)
        loss = found.loss if getattr(found, "loss", None) is not None else found[0].float().mean()
        return torch.autograd.grad(loss, weights, allow_unused=True)

    return run


def _clock(cuda: bool) -> Callable[[Call, int], float]:
    if not cuda:
        return HostClock()
    clock: Callable[[Call, int], float] = import_module("benchmarks.contenders.torch.clocks").EventClock()
    return clock
