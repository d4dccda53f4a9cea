"""Where the formulas are declared and found."""

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
    reads: Callable[[Iterable[str]], set[str]] | None = None  # which of them for these gradients; None: all


# The gradient of a floating input that has none: asking for it is an error, where the framework can tell.
REFUSED: Any = object()

GRADIENTS: dict[str, Gradient] = {}


def gradient(operator: str, *, saves: tuple[str, ...] = ()) -> Callable[[Formula], Formula]:
    """Declares the gradient of `operator`, and which of its inputs and outputs the formula reads."""

    def declare(formula: Formula) -> Formula:
        GRADIENTS[operator] = Gradient(formula, saves)
        return formula

    return declare
