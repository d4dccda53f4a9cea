"""A training step, and measurements of several steps."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from statistics import median
from typing import Any

import torch

from fusedops.torch import internals
from fusedops.torch.explaining.explanation import Cost
from fusedops.torch.explaining.meter import Meter, saved_bytes
from fusedops.torch.explaining.state import Generators

Classes = Mapping[torch.nn.Module, type]


def refused(sentence: str) -> ValueError:
    return ValueError(f"fusedops.torch.explain: {sentence}")


class Step:
    """A forward, a loss and its backward, which returns the gradients and sets none."""

    def __init__(
        self,
        model: torch.nn.Module,
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any],
        kinds: Classes,
        device: torch.device,
        generators: Generators,
    ) -> None:
        self.model, self.inputs, self.kwargs, self.kinds = model, inputs, kwargs, kinds
        self.device, self.generators = device, generators
        self.parameters = [x for x in model.parameters() if x.requires_grad]

    def whole(self) -> tuple[float, int | None]:
        """The time of the step in seconds, and on a GPU its peak memory."""
        self.generators.restore()
        on_gpu = self.device.type == "cuda"
        before = 0
        if on_gpu:
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
        begun = time.perf_counter()
        self._backward(self._loss())
        if on_gpu:
            torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - begun
        return seconds, torch.cuda.max_memory_allocated(self.device) - before if on_gpu else None

    def seconds(self) -> Mapping[Any, float]:
        """The time of each kind of module."""
        self.generators.restore()
        meter = Meter(self.kinds, self.device)
        with meter.forward():  # also in the backward, where checkpoints call modules
            loss = self._loss()
            meter.backward(loss)
            self._backward(loss)
        return meter.seconds()

    def saved(self) -> Counter[Any]:
        """The bytes that each kind of module saves for the backward."""
        self.generators.restore()
        meter = Meter(self.kinds, self.device)
        tensors = [x for x in internals.tree_leaves((self.inputs, self.kwargs)) if isinstance(x, torch.Tensor)]
        with meter.forward():
            with saved_bytes(meter, [*self.model.parameters(), *self.model.buffers(), *tensors]) as saved:
                loss = self._loss()
            self._backward(loss)
        return saved

    def _loss(self) -> torch.Tensor:
        outputs = self.model(*self.inputs, **self.kwargs)
        own = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
        tensors = [x for x in internals.tree_leaves(outputs) if isinstance(x, torch.Tensor) and x.is_floating_point()]
        if not tensors:
            raise refused("the model's outputs hold no floating-point tensor to make a loss of")
        tensors = [x for x in tensors if x.requires_grad]
        if not tensors:
            raise refused("the model's outputs depend on no parameter that requires a gradient")
        if isinstance(own, torch.Tensor) and own.dim() == 0 and own.requires_grad:
            return own
        loss: torch.Tensor = sum(x.mean() for x in tensors)  # type: ignore[assignment]
        return loss

    def _backward(self, loss: torch.Tensor) -> None:
        torch.autograd.grad(loss, self.parameters, allow_unused=True)


class Measurements:
    """Measurements of the steps of one model, as it is or converted."""

    def __init__(self, classes: Classes) -> None:
        self.classes = classes
        self.saved: Counter[Any] = Counter()
        self.wholes: list[float] = []
        self.peaks: list[int | None] = []
        self.parts: defaultdict[Any, list[float]] = defaultdict(list)

    def measure(self, step: Step, warm: bool, first: bool) -> None:
        if first:
            self.saved = step.saved()
        seconds, peak = step.whole()
        parts = step.seconds()
        if warm:
            self.wholes.append(seconds)
            self.peaks.append(peak)
            for kind, part in parts.items():
                self.parts[kind].append(part)

    def whole(self) -> Cost:
        return Cost(median(self.wholes), self.saved.total(), self.peaks[-1])

    def cost(self, kind: Any) -> Cost:
        return Cost(median(self.parts.get(kind, [0.0])), self.saved[kind])
