"""torch.nn.Sequential, with a linear layer and the following activation fused into one operator.

Every call examines the modules again, since they may be replaced or get hooks at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fusedops.torch.conversion.hf.activations import fused_name, is_activation, must_call, unfused_activation
from fusedops.torch.conversion.hf.dense import activated, unfused_dense
from fusedops.torch.conversion.hf.layer import ONLY_ALIKE, ClassSpecificLayer
from fusedops.torch.nn.layer import FusedLayer
from fusedops.torch.nn.linear import is_plain_linear, reason_to_call
from fusedops.torch.recording import is_traced, may_need_gradient


def is_sequential(kind: type) -> bool:
    """True for torch.nn.Sequential and its subclasses outside torch that inherit its `forward`."""
    if kind is torch.nn.Sequential:
        return True
    if not issubclass(kind, torch.nn.Sequential) or str(kind.__module__).partition(".")[0] == "torch":
        return False
    return kind.forward is torch.nn.Sequential.forward


class Sequential(ClassSpecificLayer):
    """A module of a class that `is_sequential`."""

    def unfused(self) -> str | None:
        reasons = [unfused_dense(product) or unfused_activation(activation) for product, activation in candidates(self)]
        return None if None in reasons else next(iter(reasons), ONLY_ALIKE)

    def computed(self) -> list[Any]:
        return [pair[1] for pair in candidates(self) if _is_fusable(*pair) and not _saves_more_for_gradient(*pair)]

    def condition(self) -> str:
        """The condition under which a pair is fused, for the report; empty if some pair always is."""
        pairs = [pair for pair in candidates(self) if _is_fusable(*pair)]
        if all(reason_to_call(product) or must_call(activation) for product, activation in pairs):
            return "where its linear layers and activations have no hook, and no weight has a main_grad"
        return "where no gradient is recorded" if all(_saves_more_for_gradient(*pair) for pair in pairs) else ""

    def forward(self, input: Any) -> Any:
        modules: Any = self
        waiting = [*modules][::-1]
        while waiting:
            module = waiting.pop()
            if waiting and _is_fusable(module, waiting[-1]) and not _saves_more(module, waiting[-1], input):
                input = activated(waiting.pop(), module, input)
            else:
                input = module(input)
        return input


def candidates(modules: Any) -> Iterator[tuple[Any, Any]]:
    """Each linear layer, or its replacement, with the activation that follows it."""
    for product, activation in pairwise(modules):
        if _is_product(product) and is_activation(activation) and fused_name(activation) != "identity":
            yield product, activation


_SIZES = {"in_features", "out_features"}


def _is_product(module: Any) -> bool:
    """True for a linear layer or its replacement by an adapter or quantizer, which has the same size attributes."""
    return is_plain_linear(module) or (vars(module).keys() >= _SIZES and not isinstance(module, FusedLayer))


# torch computes their gradient from the result, which the next module saves anyway; ours needs the pre-activation.
_GRADIENT_FROM_RESULT = ("relu", "sigmoid", "tanh")


def _saves_more_for_gradient(product: torch.nn.Linear, activation: Any) -> bool:
    """True if the operator saves a tensor that torch does not: the pre-activation, or the input of a frozen weight."""
    return fused_name(activation) in _GRADIENT_FROM_RESULT or not product.weight.requires_grad


def _saves_more(product: torch.nn.Linear, activation: Any, x: Any) -> bool:
    """True if a call with x saves more than torch, or if x is no tensor."""
    if not isinstance(x, Tensor):
        return True
    if is_traced():  # the graph must be the same without gradients
        return fused_name(activation) in _GRADIENT_FROM_RESULT
    return _saves_more_for_gradient(product, activation) and may_need_gradient(x, product.weight, product.bias)


def _is_fusable(product: Any, activation: Any) -> bool:
    """True if one operator can compute both."""
    return is_plain_linear(product) and fused_name(activation) not in (None, "identity")
