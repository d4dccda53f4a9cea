"""Layers that a parallel plan shards: torch's `parallelize_module`, or the `tp_plan` or `ep_plan` of transformers.

torch gives each layer two hooks. transformers gives it a `forward` that calls the one of its class. Both make a DTensor
of a layer's input, and the tensor that the plan asks for of its output. Between them, reading the parameters is enough,
so that one operator computes several layers. Layers of one style share the DTensor of their input: its gradient is then
all-reduced once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

import fusedops.torch as fo
from fusedops.functions.common import Activation
from fusedops.torch import distributed, internals
from fusedops.torch.nn import main_grad


class Plan(ABC):
    """The style by which a plan shards some layers with a common input."""

    @abstractmethod
    def prepare(self, x: Any) -> Any:
        """The input of the layers: a DTensor, or a plain tensor if the layers compute on their shards. Layers that are
        called with it leave it as it is."""

    @abstractmethod
    def finish(self, y: Any) -> Any:
        """The output of the layers as the plan asks for it."""

    @staticmethod
    def beside(x: Any, *parameters: Any) -> tuple[Any, ...]:
        """The parameters that are multiplied with a prepared x: their shards, if it is a plain tensor."""
        if internals.is_distributed(x):
            return parameters
        return tuple(each.to_local() if internals.is_distributed(each) else each for each in parameters)


@dataclass(frozen=True)
class _Hooks(Plan):
    """A style of `parallelize_module`."""

    layer: nn.Module
    before: Callable[..., Any]
    after: Callable[..., Any]

    def prepare(self, x: Any) -> Any:
        return self.before(self.layer, (x,))

    def finish(self, y: Any) -> Any:
        return self.after(self.layer, (), y)


@dataclass(frozen=True)
class _Columns(Plan):
    """transformers' style of layers whose outputs are sharded. Without gradients, these compute on their shards."""

    layer: nn.Module
    style: Any
    mesh: Any

    def prepare(self, x: Any) -> Any:
        (x, *_), _ = self.style.transform_inputs_pre_forward(self.layer, (x,), {}, self.mesh)
        return x

    def finish(self, y: Any) -> Any:
        return self.style.transform_output_post_forward(self.layer, y, self.mesh)


def may_have_plan(layer: nn.Module) -> bool:
    """False if the layer has neither the hooks nor the `forward` of a plan."""
    return bool(layer._forward_pre_hooks) or "forward" in layer.__dict__


def plan_of(*layers: nn.Module) -> Plan | None:
    """The plan of layers that have its hooks or its `forward`, alike and without further hooks; None for others."""
    if not may_have_plan(layers[0]):  # the fast test
        return None
    hooks = internals.hooks_of_plan(*layers)
    if hooks is not None:
        return _Hooks(layers[0], *hooks)
    if not all("forward" in layer.__dict__ for layer in layers) or any(map(internals.has_hooks, layers)):
        return None
    place = _place_of_style(*(layer.forward for layer in layers))
    return None if place is None else _Columns(layers[0], *_styles[place])


def prepared(x: Any, *layers: nn.Module) -> Any:
    """The common input of some layers, prepared by their plan; x itself without one."""
    plan = plan_of(*layers)
    return x if plan is None else plan.prepare(x)


def gated_linear(activation: Activation, gate: nn.Linear, up: nn.Linear, x: Any) -> Tensor:
    """act(gate(x)) · up(x) of layers that need not be called."""
    parameters: tuple[Any, ...] = gate.weight, up.weight, gate.bias, up.bias
    plan = plan_of(gate, up)
    if plan is not None:
        x = plan.prepare(x)
        parameters = plan.beside(x, *parameters)
    first, second, first_bias, second_bias = parameters
    y = fo.gated_linear(x, first, second, first_bias, second_bias, activation)
    return y if plan is None else plan.finish(y)


def linear_loss(head: nn.Linear, x: Any, labels: Tensor, **options: Any) -> Tensor:
    """`linear_cross_entropy` with the parameters of a head that need not be called, except for its main_grad.

    Under a plan that shards the head's classes, each process computes the part of its own: no process has all logits.
    """
    plan = plan_of(head)
    if plan is not None:
        x = distributed.replicated(plan.prepare(x), head.weight)
        labels = distributed.replicated(labels, x)
    weight: Tensor = head.weight
    if main_grad.is_added(weight):
        weight = main_grad.to_main_grad(weight, "linear_cross_entropy")
    loss = fo.linear_cross_entropy(x, weight, labels, head.bias, **options)
    return loss if plan is None else distributed.whole(loss)


# ---- transformers ----

_TENSOR_PARALLEL = "transformers.distributed.tensor_parallel"
_MODULES = (_TENSOR_PARALLEL, "transformers.distributed.expert_parallel")
_styles: list[tuple[Any, Any]] = []  # known styles, each with its mesh


@internals.before_tracing
def _place_of_style(*forwards: Any) -> int | None:
    """The place in `_styles` of the one style by which transformers shards the outputs of the layers with these
    forwards; None if there is no such style. The compiler takes a number as a constant, but not a style."""
    found = [_style(forward) for forward in forwards]
    first = found[0]
    if first is None or any(each != first for each in found):
        return None
    if first not in _styles:
        _styles.append(first)
    return _styles.index(first)


def _style(forward: Any) -> tuple[Any, Any] | None:
    """The style and the mesh of a layer with this forward, as above."""
    if not _is_of_plan(forward):
        return None
    cells = internals.closure_of(forward)
    if not cells.keys() >= {"self", "module", "mesh", "original_forward"}:
        return None
    style, layer = cells["self"].cell_contents, cells["module"].cell_contents
    if type(style).__name__ != "ColwiseParallel" or type(style).__module__ != _TENSOR_PARALLEL:
        return None
    is_quantized = vars(layer).get("_hf_quantized_needs_local_tp", False)
    if is_quantized or not _is_of_class(cells["original_forward"].cell_contents, layer):
        return None
    return style, cells["mesh"].cell_contents


def _is_of_plan(forward: Any) -> bool:
    """True if transformers' plan has set this `forward`."""
    is_function = isinstance(forward, FunctionType) and forward.__module__ in _MODULES
    return is_function and ".install_forward.<locals>." in forward.__qualname__


def _is_of_class(forward: Any, module: Any) -> bool:
    """True if it is the module's method of this name."""
    is_bound = isinstance(forward, MethodType) and forward.__self__ is module
    return is_bound and forward.__func__ is type(module).forward


def kept_forwards(module: Any) -> list[tuple[Any, str]]:
    """The places that hold the forward of a module's class for the `forward` that transformers' plan has set: objects
    and their attributes. Empty without a plan, and if the plan's `forward` calls another one."""
    forward = vars(module).get("forward")
    if not _is_of_plan(forward):
        return []
    places: list[tuple[Any, str]] = []
    for cell in internals.closure_of(forward).values():
        places.append((cell, "cell_contents"))
        parts = getattr(cell.cell_contents, "__dict__", {})  # an EPImplementation may have others as attributes
        places += [(each, "experts_forward") for each in (cell.cell_contents, *parts.values())]
    return [place for place in places if _is_of_class(getattr(*place, None), module)]


def become(module: nn.Module, kind: type) -> None:
    """Gives a module this class. A `forward` that transformers' plan has set then calls that of the new class."""
    kept = kept_forwards(module)
    module.__class__ = kind
    for holder, name in kept:
        setattr(holder, name, MethodType(kind.forward, module))  # type: ignore[attr-defined]


def has_summed_gradients(module: nn.Module) -> bool:
    """True if the `forward` that transformers' plan has set only adds all-reduces of the parameters' gradients. Then
    `sum_gradients` and reading the parameters replace a call, except in compiled code."""
    if "forward" not in module.__dict__:  # the fast test
        return False
    if torch.compiler.is_compiling() or internals.has_hooks(module) or not kept_forwards(module):
        return False
    return str(module.forward.__qualname__).startswith("ReplicatedWithGradAllReduce.")


def sum_gradients(module: nn.Module) -> None:
    """Adds the all-reduces as a call does: by the plan's `forward`, without that of the class."""
    forward: Any = module.forward
    cells = internals.closure_of(forward) | {"original_forward": CellType(lambda: None)}
    FunctionType(forward.__code__, forward.__globals__, closure=tuple(cells.values()))()
