"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from fusedops.arguments import given
from fusedops.torch.operators import OPERATORS
from fusedops.torch.optim.fused import FusedOptimizer, Group, Update


def _sgd(lists: Sequence[list[torch.Tensor]], lr: Any, scalars: Sequence[Any], options: dict[str, Any]) -> None:
    params, grads, momentums = lists
    OPERATORS.sgd(params, grads, momentums, lr, *scalars, **options)


class SGD(FusedOptimizer, torch.optim.SGD):
    """torch.optim.SGD, with all parameters updated in one pass; see `AdamW`.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        >>> optimizer = fusedops.torch.optim.SGD([weight], lr=0.25, momentum=0.9)
        >>> (weight**2).sum().backward()
        >>> optimizer.step()
        >>> weight.tolist()
        [0.5, 1.0]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | torch.Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | torch.Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(**given(locals()))

    def is_covered(self, group: Group) -> bool:
        return not isinstance(group["weight_decay"], torch.Tensor) and not group["differentiable"]

    def updates(self, group: Group, params: list[torch.Tensor], grads: list[Any]) -> list[Update]:
        options = {
            "momentum": float(group["momentum"]),
            "dampening": float(group["dampening"]),
            "weight_decay": float(group["weight_decay"]),
            "nesterov": bool(group["nesterov"]),
            "maximize": bool(group["maximize"]),
        }
        if group["momentum"] == 0:
            return [Update(_sgd, params, grads, [[]], group["lr"], options)]
        known = [self.state.get(p, {}).get("momentum_buffer") is not None for p in params]
        return [
            self._with_momentum(group, [*compress(params, of_these)], [*compress(grads, of_these)], options)
            for of_these in ([not x for x in known], known)
            if any(of_these)
        ]

    def _with_momentum(
        self, group: Group, params: list[torch.Tensor], grads: list[Any], options: dict[str, Any]
    ) -> Update:
        """The update of parameters that all have a momentum, or all have none; the first gradient initializes it."""
        if self.state.get(params[0], {}).get("momentum_buffer") is not None:
            momentums = [self.state[p]["momentum_buffer"] for p in params]
            return Update(_sgd, params, grads, [momentums], group["lr"], options)
        momentums = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in params]

        def keep() -> None:
            for p, momentum in zip(params, momentums, strict=True):
                self.state[p]["momentum_buffer"] = momentum

        return Update(_sgd, params, grads, [momentums], group["lr"], {**options, "first": True}, keep)
