"""torch.nn.Sequential: a linear layer and the activation behind it are one operator.

Which modules these are is looked up in every call: each may be replaced, and may get hooks, at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fusedops.torch.conversion.hf.activations import fused_name, has_watchers, is_activation, unfused_activation
from fusedops.torch.conversion.hf.dense import activated, unfused_dense
from fusedops.torch.conversion.hf.layer import ONLY_ALIKE, OfOneClass
from fusedops.torch.nn.layer import FusedLayer
from fusedops.torch.nn.linear import is_plain_linear, reason_to_call
from fusedops.torch.recording import is_traced, may_need_gradient


def is_sequential(kind: type) -> bool:
    """Whether it is torch.nn's class, or somebody's subclass that runs its modules as torch.nn's does."""
    if kind is torch.nn.Sequential:
        return True
    if not issubclass(kind, torch.nn.Sequential) or str(kind.__module__).partition(".")[0] == "torch":
        return False
    return kind.forward is torch.nn.Sequential.forward


class Sequential(OfOneClass):
    """A module of a class that `is_sequential`."""

    def unfused(self) -> str | None:
        reasons = [unfused_dense(product) or unfused_activation(activation) for product, activation in meant(self)]
        return None if None in reasons else next(iter(reasons), ONLY_ALIKE)

    def computed(self) -> list[Any]:
        """Those that are in every call."""
        return [pair[1] for pair in meant(self) if _is_pair(*pair) and not _keeps_more_for_a_gradient(*pair)]

    def condition(self) -> str:
        """Where any pair is fused, if not in every call."""
        pairs = [pair for pair in meant(self) if _is_pair(*pair)]
        if all(reason_to_call(product) or has_watchers(activation) for product, activation in pairs):
            return "where its linear layers and activations have no hook, and no weight has a main_grad"
        return "where no gradient is recorded" if all(_keeps_more_for_a_gradient(*pair) for pair in pairs) else ""

    def forward(self, input: Any) -> Any:
        modules: Any = self
        waiting = [*modules][::-1]
        while waiting:
            module = waiting.pop()
            if waiting and _is_pair(module, waiting[-1]) and not _keeps_more(module, waiting[-1], input):
                input = activated(waiting.pop(), module, input)
            else:
                input = module(input)
        return input


def meant(modules: Any) -> Iterator[tuple[Any, Any]]:
    """Each linear layer, or what somebody has put in its place, and the activation behind it."""
    for product, activation in pairwise(modules):
        if _is_product(product) and is_activation(activation) and fused_name(activation) != "identity":
            yield product, activation


_SIZES = {"in_features", "out_features"}


def _is_product(module: Any) -> bool:
    """What somebody has put in the place of a linear layer mostly has its sizes, as attributes of its own."""
    return is_plain_linear(module) or (vars(module).keys() >= _SIZES and not isinstance(module, FusedLayer))


# Torch computes their gradient from the result, which the next module keeps, too; ours follows from the sums.
_OF_THE_RESULT = ("relu", "sigmoid", "tanh")


def _keeps_more_for_a_gradient(product: torch.nn.Linear, activation: Any) -> bool:
    """Whether the operator keeps a tensor for the backward which torch does not: the sums, or the input, which torch
    needs for the gradient of the weight alone."""
    return fused_name(activation) in _OF_THE_RESULT or not product.weight.requires_grad


def _keeps_more(product: torch.nn.Linear, activation: Any, x: Any) -> bool:
    """Whether it does so in a call; also of an x that is no tensor."""
    if not isinstance(x, Tensor):
        return True
    if is_traced():  # the tracer checks that it finds the same graph without gradients
        return fused_name(activation) in _OF_THE_RESULT
    return _keeps_more_for_a_gradient(product, activation) and may_need_gradient(x, product.weight, product.bias)


def _is_pair(product: Any, activation: Any) -> bool:
    """Whether they are of the classes that the operator stands for."""
    return is_plain_linear(product) and fused_name(activation) not in (None, "identity")
