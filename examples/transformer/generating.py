"""Greedy text generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import model
import numpy as np


def greedy(predict: Callable[[np.ndarray], np.ndarray], prompts: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
    """Each prompt followed by `count` more tokens. `predict` returns the logits of [prompts, CONTEXT] tokens.

    The model sees the last CONTEXT tokens. A shorter text is padded at its end, which the causal mask hides.
    """
    texts = [list(prompt) for prompt in prompts]
    for _ in range(count):
        tokens = np.zeros((len(texts), model.CONTEXT), np.int64)
        for row, text in zip(tokens, texts, strict=True):
            seen = text[-model.CONTEXT :]
            row[: len(seen)] = seen
        for scores, text in zip(predict(tokens), texts, strict=True):
            text.append(int(scores[min(len(text), model.CONTEXT) - 1].argmax()))
    return [np.array(text) for text in texts]
