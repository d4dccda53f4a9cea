"""Times a training step of a family's model before `convert`, after it, and with Liger's kernels: eager and compiled.

The model has few layers; its other sizes are the defaults of its config class, mostly those of the smallest released
model. Each implementation has its own model over the same weights. Loops of steps are timed with the host's clock, so
the time of a small model is that of issuing its kernels.
"""

from __future__ import annotations

import copy
import inspect
import os
import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch

import fusedops.torch as fo
from audits.families.hugging_face import families, prepare
from audits.families.inputs import first_field, inputs_of
from audits.families.steps_table import COMPILED, EAGER, LIGER
from benchmarks.measuring.timing import Call, Effort, HostClock, Implementation, take_turns

_TOKENS = 2048  # per step, in all sequences
_IMAGES = 16  # images or sounds per step
_QUICK = (2, 16)
EFFORT = Effort(round=50e-3, total=3.0, min_calls=2)
_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len", "n_ctx")
QUICK = Effort(round=0.0, total=0.1, min_rounds=2, max_rounds=2)


def steps(task: str) -> dict[str, float]:
    """Seconds by implementation.

    Args:
        task: a family's name, a colon, and the implementations that share a process: `llama:before;converted`. Liger
            replaces functions for all models of a process, so it runs in a separate one.
    """
    prepare()
    name, _, implementations = task.partition(":")
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return timed(calls(name, implementations.split(";")), EFFORT if torch.cuda.is_available() else QUICK)


def calls(name: str, implementations: Iterable[str], shape: tuple[int, int] | None = None) -> dict[str, Call]:
    """A step of each implementation, on the GPU if available.

    Args:
        name: a family's name.
        implementations: implementations of `steps_table`.
        shape: the number of sequences or images, and of tokens per sequence; derived from the config by default.
    """
    cuda = torch.cuda.is_available()
    model = families()[name].released("cuda", "bfloat16") if cuda else families()[name].build()
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False  # a training step needs none
    if hasattr(model.config, "layerdrop"):  # speech models would drop different layers in each implementation
        model.config.layerdrop = 0.0
    inputs = inputs_of(model, shape or (_shape(model) if cuda else _QUICK))
    model.train()
    return {name: _step(_BUILT[name](_sharing(model)), inputs) for name in implementations}


def timed(calls: Mapping[str, Call], effort: Effort) -> dict[str, float]:
    """Median seconds of each call; the calls are timed in turns."""
    clock = HostClock(torch.cuda.synchronize if torch.cuda.is_available() else None)
    times = take_turns({name: Implementation(call, clock) for name, call in calls.items()}, effort)
    return {name: statistics.median(samples) for name, samples in times.items()}


def _shape(model: Any) -> tuple[int, int]:
    """For text, the same number of tokens in all families, in sequences no longer than the model's positions."""
    length, positions = _TOKENS, first_field(model.config, _POSITIONS, _TOKENS)
    # Some position tables begin with up to two reserved entries.
    spare = 0 if first_field(model.config, ("rope_parameters",), None) else 2
    while length > positions - spare:
        length //= 2
    takes_text = "input_ids" in inspect.signature(model.forward).parameters
    return (_TOKENS // length if takes_text else _IMAGES), length


def tasks(names: list[str], compiled: bool) -> list[str]:
    shared = (*EAGER, *COMPILED) if compiled else EAGER
    return [f"{name}:{';'.join(each)}" for name in names for each in (shared, (LIGER,))]


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
