"""The registry of gradient formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Tensor = Any
Formula = Callable[..., Mapping[str, Any]]


@dataclass(frozen=True)
class Gradient:
    formula: Formula
    saves: tuple[str, ...]  # the inputs and outputs that the formula reads
    reads: Callable[[Iterable[str]], set[str]] | None = None  # the subset of `saves` for these gradients; None: all


# The gradient of a floating input that has none. Asking for it is an error if the framework can tell.
REFUSED: Any = object()

GRADIENTS: dict[str, Gradient] = {}


def gradient(operator: str, *, saves: tuple[str, ...] = ()) -> Callable[[Formula], Formula]:
    """Declares the gradient of `operator`, and which of its inputs and outputs the formula reads."""

    def declare(formula: Formula) -> Formula:
        GRADIENTS[operator] = Gradient(formula, saves)
        return formula

    return declare
