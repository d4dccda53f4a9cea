"""Layers that a parallel plan shards: torch's `parallelize_module` gives each of them two hooks.

The hooks make a DTensor of a layer's input, and the tensor that the plan asks for of its output. Between them, reading
the parameters is enough, so that one operator computes several layers. Layers of one style share the DTensor of their
input: its gradient is then all-reduced once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

import fusedops.torch as fo
from fusedops.functions.common import Activation
from fusedops.torch import distributed, internals


@dataclass(frozen=True)
class Plan:
    """The style by which a plan shards some layers with a common input."""

    layer: nn.Module
    before: Callable[..., Any]
    after: Callable[..., Any]

    def prepare(self, x: Any) -> Any:
        """The input of the layers as a DTensor. Layers that are called with it leave it as it is."""
        return self.before(self.layer, (x,))

    def finish(self, y: Any) -> Any:
        """The output of the layers as the plan asks for it."""
        return self.after(self.layer, (), y)


def plan_of(*layers: nn.Module) -> Plan | None:
    """The plan of layers that have its hooks, alike and without any others; None for other layers."""
    hooks = internals.hooks_of_plan(*layers)
    return None if hooks is None else Plan(layers[0], *hooks)


def prepared(x: Any, *layers: nn.Module) -> Any:
    """The common input of some layers, prepared by their plan; x itself without one."""
    plan = plan_of(*layers)
    return x if plan is None else plan.prepare(x)


def gated_linear(activation: Activation, gate: nn.Linear, up: nn.Linear, x: Any) -> Tensor:
    """act(gate(x)) · up(x) of layers that need not be called."""
    plan = plan_of(gate, up)
    x = x if plan is None else plan.prepare(x)
    y = fo.gated_linear(x, gate.weight, up.weight, gate.bias, up.bias, activation)
    return y if plan is None else plan.finish(y)


def linear_loss(head: nn.Linear, x: Any, labels: Tensor, **options: Any) -> Tensor:
    """`linear_cross_entropy` with the parameters of a head that need not be called.

    Under a plan that shards the head's classes, each process computes the part of its own: no process has all logits.
    """
    plan = plan_of(head)
    if plan is not None:
        x = plan.prepare(x)
        labels = distributed.replicated(labels, x)
    loss = fo.linear_cross_entropy(x, head.weight, labels, head.bias, **options)
    return loss if plan is None else distributed.whole(loss)
