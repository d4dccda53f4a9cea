"""Compares the frameworks with the same weights: the generated text, and the bits of the logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import model
import numpy as np
from common.bits import differing
from data import Text, windows
from generating import greedy


@dataclass(frozen=True)
class Written:
    where: str
    texts: list[np.ndarray]  # the tokens of each prompt and its continuation
    logits: np.ndarray  # the logits of a batch of test windows

    @property
    def characters(self) -> int:
        return sum(text.size for text in self.texts)

    def differing_characters(self, other: Written) -> int:
        return sum(np.count_nonzero(a != b) for a, b in zip(self.texts, other.texts, strict=True))

    def differing_bits(self, other: Written) -> int:
        return int(differing(self.logits, other.logits).sum())


def write(
    sides: Sequence[Any],
    parameters: Mapping[str, np.ndarray],
    text: Text,
    prompts: Sequence[str],
    count: int,
    report: Callable[[str], None],
) -> list[Written]:
    """Generates text in each framework with fusedops's operators, eager and as a graph."""
    starts = np.linspace(0, len(text.test) - model.CONTEXT - 1, 8).astype(int)
    tokens, _ = windows(text.test, starts, model.CONTEXT)
    encoded = [text.encoded(prompt) for prompt in prompts]
    result = []
    for side in sides:
        for compiled in side.compiled:
            where = side.title if len(side.compiled) == 1 else f"{side.title}, {'graph' if compiled else 'eager'}"
            predict = side.predictor(side.fused, parameters, compiled)
            result.append(Written(where, greedy(predict, encoded, count), predict(tokens)))
            report(where)
    return result
