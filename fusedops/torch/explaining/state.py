"""Saves and restores the state that a step changes."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fusedops.torch.conversion.hf import implementation
from fusedops.torch.nn import plans

_MEMBERS = ("_parameters", "_buffers", "_modules")  # dictionaries of a module


class Generators:
    """The present states of the random number generators that a step may use."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self._states: list[Any] = [torch.get_rng_state(), random.getstate()]
        if "numpy" in sys.modules:
            self._states.append(sys.modules["numpy"].random.get_state())
        self._of_gpu = torch.cuda.get_rng_state(device) if self._cuda else None

    def have_drawn_on_host(self) -> bool:
        """True if a generator of the host has drawn since."""
        (of_torch, *others), (now, *others_now) = self._states, Generators(torch.device("cpu"))._states
        return not torch.equal(of_torch, now) or repr(others) != repr(others_now)  # NumPy's has an array

    def restore(self) -> None:
        of_torch, of_python, *of_numpy = self._states
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        for state in of_numpy:
            sys.modules["numpy"].random.set_state(state)
        if self._cuda and self._of_gpu is not None:
            torch.cuda.set_rng_state(self._of_gpu, self._cuda)


@contextmanager
def restored(model: torch.nn.Module, generators: Generators) -> Iterator[None]:
    """Restores classes, attributes, buffers and random numbers. A step sets no gradient.

    Parameters, buffers and modules that a forward adds are removed, and those that it removes are added again.
    """
    modules = list(model.modules())
    classes, attentions = [type(module) for module in modules], implementation.selected(modules)
    attributes = [dict(vars(module)) for module in modules]
    members = [{name: dict(vars(module)[name]) for name in _MEMBERS} for module in modules]
    values = {x: x.detach().clone() for module in modules for x in _mutable(module)}
    try:
        yield
    finally:
        for module, kind, own, of_module in zip(modules, classes, attributes, members, strict=True):
            plans.become(module, kind)
            vars(module).clear()
            vars(module).update(own)
            for name, them in of_module.items():
                own[name].clear()
                own[name].update(them)
        implementation.select(attentions)
        for x, value in values.items():
            x.data.copy_(value)  # no new version, which would invalidate existing graphs
        generators.restore()


def _mutable(module: torch.nn.Module) -> list[torch.Tensor]:
    """The tensors that a forward may mutate."""
    mutable = [x for x in module._buffers.values() if x is not None]
    if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.max_norm is not None:
        mutable.append(module.weight)  # it renormalizes rows
    return mutable
