"""The implementation "fusedops" in transformers' registry of experts, for models that are not converted.

This module is imported with `transformers.integrations.moe`, which has the registry.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, grouped_mm_experts_forward

from fusedops.conversion import UnknownClass
from fusedops.torch.conversion import hf
from fusedops.torch.conversion.hf.experts import NAME, Experts
from fusedops.torch.internals import before_tracing

_counterparts: dict[int, type[Experts]] = {}  # by the ids of the original classes, to which they refer


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The forward of any module of transformers' experts. What the kernel does not support runs `grouped_mm`, which is
    transformers' default."""
    number = None if "_apply_gate" in vars(self) else _number(type(self))
    if number is not None:
        kind = _counterparts[number]
        if not (kind.unfused_module(self) or kind.unfused_call(self, hidden_states, top_k_weights)):
            return kind.compute(self, hidden_states, top_k_index, top_k_weights)
    return grouped_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)


@before_tracing  # the compiler cannot guard attributes of a class that such a function returns
def _number(kind: type) -> int | None:
    """The key of a class's counterpart, or of its base's if `fully_shard` or a parametrization made the class."""
    base: Any = next(each for each in kind.__mro__ if "forward" in vars(each))
    if issubclass(base, Experts):
        base = base.original
    if kind._apply_gate is not base._apply_gate:  # type: ignore[attr-defined]
        return None
    found = _counterpart(base)
    if found is None:
        return None
    _counterparts[id(base)] = found
    return id(base)


@functools.cache  # the source of an unknown class is read for each look-up, which takes longer than small experts
def _counterpart(base: type) -> type[Experts] | None:
    try:
        found = hf.counterpart(base)
    except UnknownClass:
        return None
    return found if issubclass(found, Experts) else None


ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
