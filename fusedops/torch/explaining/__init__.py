"""`explain` measures a training step of a model as it is and converted, by kinds of modules."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from fusedops import conversion
from fusedops.building.progress import progress
from fusedops.torch import distributed, internals
from fusedops.torch.conversion.counterparts import Modules
from fusedops.torch.conversion.hf import implementation
from fusedops.torch.explaining.explanation import Explanation
from fusedops.torch.explaining.rows import rows
from fusedops.torch.explaining.state import Generators, restored
from fusedops.torch.explaining.steps import Classes, Measurements, Step, refused
from fusedops.torch.nn import plans

__all__ = ["explain"]

STEPS = 5  # timed steps of each model, and as many again by kinds of modules
_WARM_UP = 2  # before them; the first one measures saved tensors
_WRAPPERS = ("DistributedDataParallel", "FSDPModule", "FullyShardedDataParallel")  # need gradients to be set
_LONG = 20.0  # seconds, after which no more steps begin
_INTERVAL = 5.0  # seconds between lines of progress


def explain(model: torch.nn.Module, /, *inputs: Any, **kwargs: Any) -> Explanation:
    """Measures a training step of a model, as it is and converted, by kinds of modules.

    The result prints as a table: for each class of modules the time, and the memory that the forward saves for the
    backward, theirs and ours, and the share of the step of unconverted classes. `result.plot("step.png")` plots it.

    A step is forward and backward of the model's loss, if its outputs have a member `loss`, else of the sum of the
    means of all floating-point outputs. A model in evaluation mode runs in training mode. Steps of both models
    alternate, with the same random numbers. Times are medians of 5 steps after 2 warm-up steps, or of fewer if that
    takes more than 20 seconds. A module's time excludes its submodules. If `convert` computes a module's work in
    another module, such as a norm with the residual before it, the time is in the row of that module.

    Times are measured by the clock on a CPU, and by events of the current stream on a GPU, where waiting for Python
    counts as busy. The whole step is measured separately, without the overhead of measuring its parts: prefer it to the
    sum. The memory is that of tensors saved by autograd, each counted once, without parameters, buffers and inputs. On
    a GPU the table includes the step's peak memory; this resets torch's own record of the peak.

    The model's classes, parameters, gradients, buffers, attributes, hooks, training mode and random numbers are
    restored. Mutations of inputs, parameters, lists and dictionaries by the forward itself, such as a cache of keys and
    values, stay. Hooks of modules and tensors run as in any step, except those for accumulated gradients.

    Args:
        model: any module whose parameters are on one device. If it is converted already, also with `functions=True`,
            it is compared with the reverted model.
        inputs, kwargs: the arguments of a call.

    Returns:
        An Explanation: `rows` of `kind`, `count`, `replaced`, `theirs` and `ours`, each with `seconds` and `saved`
        bytes; `theirs` and `ours` of the whole step, on a GPU with `peak` bytes; `notes` on sharded parameters.

    Raises:
        TypeError: the model is not a torch.nn.Module.
        ValueError: no parameter requires a gradient, or none of the outputs depends on one; the parameters are on
            several devices, or on neither a CPU nor a CUDA GPU; a lazy module has none yet; the model is compiled,
            graphed or distributed.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
        >>> explanation = fo.explain(model, torch.ones(8, 64))
        >>> sorted((row.kind, row.replaced) for row in explanation.rows)
        [('LayerNorm', 1), ('Linear', 0), ('outside of all modules', 0)]
    """
    device = _device(model)
    modules = list(model.modules())
    generators = Generators(device)
    here = torch.cuda.device(device.index if device.type == "cuda" else -1)  # -1: no change
    with here, restored(model, generators), torch.inference_mode(False), torch.enable_grad():
        rules = Modules(model)
        report = conversion.Report(rules, type(model).__name__)
        theirs, ours, attentions = _classes(modules, rules, report)
        if not model.training:
            model.train()
        step = Step(model, inputs, kwargs, theirs, device, generators)
        measured = {"theirs": Measurements(theirs), "ours": Measurements(ours)}
        with progress(_throttled(), verbose=True, still=True) as show:
            begun = time.monotonic()
            for round in range(_WARM_UP + STEPS):
                if round > _WARM_UP and time.monotonic() - begun > _LONG:
                    break
                for number, (name, side) in enumerate(measured.items()):
                    show(2 * round + number, 2 * (_WARM_UP + STEPS), f"a step of {type(model).__name__}, {name}")
                    _become(side.classes)
                    implementation.select(attentions[name])
                    side.measure(step, warm=round >= _WARM_UP, first=round == 0)
    return Explanation(
        model=type(model).__name__,
        device=str(device),
        steps=len(measured["ours"].wholes),
        modules=report.all,
        rows=rows(theirs, ours, measured["theirs"], measured["ours"]),
        theirs=measured["theirs"].whole(),
        ours=measured["ours"].whole(),
        notes=tuple(distributed.notes_on_shards(model.parameters())),
    )


def _device(model: Any) -> torch.device:
    """The model's device. Raises an error if the model cannot be explained."""
    if not isinstance(model, torch.nn.Module):
        raise conversion.no_model("fusedops.torch.explain", "a torch.nn.Module", model)
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        raise refused("a lazy module of the model has no parameters yet; call the model once before")
    if not any(x.requires_grad for x in model.parameters()):
        raise refused("a training step needs a parameter that requires a gradient; the model has none")
    if any(map(internals.is_compiled, model.modules())):
        raise refused("the model is compiled; pass the module that it was compiled from")
    if any(hasattr(vars(module).get("forward"), "graphs") for module in model.modules()):
        raise refused("the model is graphed, and a replay calls no modules; `del model.forward` first")
    if any(kind.__name__ in _WRAPPERS for module in model.modules() for kind in type(module).__mro__):
        raise refused("the model is distributed, and its steps are not those of one process; pass the module within")
    devices = {x.device for x in model.parameters()}
    device = devices.pop()
    if devices or device.type not in ("cpu", "cuda"):
        found = " and ".join(sorted(map(str, {device, *devices})))
        raise refused(f"the parameters must be on one device, a CPU or a CUDA GPU; they are on {found}")
    return device


def _classes(
    modules: list[torch.nn.Module], rules: Modules, report: conversion.Report
) -> tuple[Classes, Classes, dict[str, implementation.Selected]]:
    """The class of each module reverted, and converted, and the selected attentions of both."""
    original, attentions = {module: type(module) for module in modules}, {}
    conversion.revert(modules, rules)
    implementation.revert(modules)
    theirs, attentions["theirs"] = {module: type(module) for module in modules}, implementation.selected(modules)
    _become(original)
    conversion.convert(modules[::-1], rules, report)
    implementation.convert(modules)
    attentions["ours"] = implementation.selected(modules)
    return theirs, {module: type(module) for module in modules}, attentions


def _become(classes: Classes) -> None:
    for module, kind in classes.items():
        plans.become(module, kind)


def _throttled() -> Callable[[str], None]:
    """A function that prints a line to stderr at most once per _INTERVAL."""
    last = time.monotonic()

    def say(line: str) -> None:
        nonlocal last
        if time.monotonic() - last > _INTERVAL:
            last = time.monotonic()
            print(f"fusedops: {line}", file=sys.stderr, flush=True)

    return say
