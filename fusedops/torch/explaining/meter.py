"""Which kind of module a step's time and memory belong to.

At any moment one kind has its turn: that of the innermost module whose forward runs, or in the backward that of the
module whose forward has made the node. A turn's time is its own alone, without that of modules within.
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
    """Of one step."""

    def __init__(self, kinds: Mapping[torch.nn.Module, type], device: torch.device) -> None:
        self._kinds = kinds
        self._on_gpu = device.type == "cuda"
        self._kind: Kind = None
        self._turns: list[tuple[Any, Kind]] = [(self._now(), None)]
        self._made: list[tuple[int, Kind]] = [(0, None)]  # from which node on they are made by which kind

    @contextmanager
    def forward(self) -> Iterator[None]:
        with internals.calls_of_modules(self._call):
            yield

    def backward(self, loss: torch.Tensor) -> None:
        """Has every node of the loss's graph take its turn when it runs."""
        self._turn(Meter)  # the look itself, which counts for nobody
        nodes, seen = [loss.grad_fn], {loss.grad_fn}
        numbers = [number for number, _ in self._made]
        while nodes:
            node: Any = nodes.pop()
            kind = self._made[bisect_right(numbers, node._sequence_nr()) - 1][1]
            node.register_prehook(lambda _, kind=kind: self._turn(kind))
            others = {other for other, _ in node.next_functions if other is not None and not _is_leaf(other)}
            nodes += others - seen
            seen |= others
        self._turn(None)

    def seconds(self) -> dict[Kind, float]:
        """Of each kind, now that the step is over."""
        turns = [*self._turns, (self._now(), None)]
        if self._on_gpu:
            torch.cuda.synchronize()
        spent: Counter[Any] = Counter()
        for (begun, kind), (ended, _) in pairwise(turns):
            spent[kind] += begun.elapsed_time(ended) / 1e3 if self._on_gpu else ended - begun
        del spent[Meter]
        return dict(spent)

    @property
    def kind(self) -> Kind:
        return self._kind

    def _call(self, original: Any, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer = self._kind
        self._turn(self._kinds.get(module, outer))
        try:
            return original(module, *args, **kwargs)
        finally:
            self._turn(outer)

    def _turn(self, kind: Kind) -> None:
        if kind is not self._kind:
            self._kind = kind
            self._made.append((internals.next_node(), kind))
            self._turns.append((self._now(), kind))

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _is_leaf(node: Any) -> bool:
    return hasattr(node, "variable")  # AccumulateGrad, which does not run where gradients are returned


@contextmanager
def saved_bytes(meter: Meter, others: Iterable[torch.Tensor]) -> Iterator[Counter[Kind]]:
    """What each kind's forward keeps for the backward, in bytes, without what these others hold anyway.

    Memory that several nodes keep counts once, for the first of them.
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
    """Where it is, and its size."""
    try:
        storage = x.untyped_storage()
        return (x.device, storage.data_ptr()), storage.nbytes()
    except (NotImplementedError, RuntimeError):  # no memory of its own, as in some subclasses
        return id(x), x.nbytes
