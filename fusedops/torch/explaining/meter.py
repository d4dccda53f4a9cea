"""Attributes a step's time and memory to kinds of modules.

At any time one kind is active: that of the innermost module whose forward runs, or in the backward that of the module
whose forward made the running node. Time is exclusive: a module's time is without that of its submodules.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from fusedops.torch import internals

Kind = type | None  # None: outside of all modules


class Meter:
    """Measures one step."""

    def __init__(self, kinds: Mapping[torch.nn.Module, type], device: torch.device) -> None:
        self._kinds = kinds
        self._on_gpu = device.type == "cuda"
        self.kind: Kind = None
        self._switches: list[tuple[Any, Kind]] = [(self._now(), None)]
        self._makers: list[tuple[int, Kind]] = [(0, None)]  # (first node, kind that makes it and the next ones)

    @contextmanager
    def forward(self) -> Iterator[None]:
        with internals.calls_of_modules(self._call):
            yield

    def backward(self, loss: torch.Tensor) -> None:
        """Makes every node of the loss's graph activate its kind when it runs."""
        self._switch(Meter)  # excludes the time of this function
        nodes, seen = [loss.grad_fn], {loss.grad_fn}
        numbers = [number for number, _ in self._makers]
        while nodes:
            node: Any = nodes.pop()
            kind = self._makers[bisect_right(numbers, node._sequence_nr()) - 1][1]
            node.register_prehook(lambda _, kind=kind: self._switch(kind))
            # AccumulateGrad, which has a variable, does not run in torch.autograd.grad.
            others = {x for x, _ in node.next_functions if x is not None and not hasattr(x, "variable")}
            nodes += others - seen
            seen |= others
        self._switch(None)

    def seconds(self) -> dict[Kind, float]:
        """The time of each kind, after the step."""
        switches = [*self._switches, (self._now(), None)]
        if self._on_gpu:
            torch.cuda.synchronize()
        spent: Counter[Any] = Counter()
        for (begun, kind), (ended, _) in pairwise(switches):
            spent[kind] += begun.elapsed_time(ended) / 1e3 if self._on_gpu else ended - begun
        del spent[Meter]
        return dict(spent)

    def _call(self, original: Any, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer = self.kind
        self._switch(self._kinds.get(module, outer))
        try:
            return original(module, *args, **kwargs)
        finally:
            self._switch(outer)

    def _switch(self, kind: Kind) -> None:
        if kind is not self.kind:
            self.kind = kind
            self._makers.append((internals.next_node(), kind))
            self._switches.append((self._now(), kind))

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


@contextmanager
def saved_bytes(meter: Meter, others: Iterable[torch.Tensor]) -> Iterator[Counter[Kind]]:
    """The bytes that each kind's forward saves for the backward, without the memory of `others`.

    Memory that several nodes save counts once, for the first one.
    """
    held = {_memory(x)[0] for x in others}
    saved: Counter[Kind] = Counter()

    def save(x: torch.Tensor) -> torch.Tensor:
        place, size = _memory(x)
        if place not in held:
            held.add(place)
            saved[meter.kind] += size
        return x

    with torch.autograd.graph.saved_tensors_hooks(save, lambda x: x):
        yield saved


def _memory(x: torch.Tensor) -> tuple[Any, int]:
    """The identity and the size of a tensor's memory."""
    try:
        storage = x.untyped_storage()
        return (x.device, storage.data_ptr()), storage.nbytes()
    except (NotImplementedError, RuntimeError):  # a subclass without storage
        return id(x), x.nbytes
