"""Writes text with a model: the likeliest character, again and again."""

from __future__ import annotations

from collections.abc import Callable

import model
import numpy as np


def greedy(predict: Callable[[np.ndarray], np.ndarray], prompt: np.ndarray, count: int) -> np.ndarray:
    """The prompt and `count` more tokens. `predict` gives the logits of [1, CONTEXT] tokens.

    The last CONTEXT tokens are what the model sees. A shorter text is filled up behind its end, where it does not look.
    """
    text = list(prompt)
    for _ in range(count):
        seen = text[-model.CONTEXT :]
        tokens = np.zeros((1, model.CONTEXT), np.int64)
        tokens[0, : len(seen)] = seen
        text.append(int(predict(tokens)[0, len(seen) - 1].argmax()))
    return np.array(text)
