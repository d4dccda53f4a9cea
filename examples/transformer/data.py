"""The text of Python's help on its language, as character tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pydoc_data.topics import topics

import numpy as np

PAGE = 2000  # characters


@dataclass(frozen=True)
class Text:
    alphabet: str  # the character of each token
    train: np.ndarray
    test: np.ndarray

    def encoded(self, text: str) -> np.ndarray:
        places = {character: place for place, character in enumerate(self.alphabet)}
        return np.array([places[character] for character in text if character in places], np.int64)

    def decoded(self, tokens: np.ndarray) -> str:
        return "".join(self.alphabet[token] for token in tokens)


def load() -> Text:
    """All topics in order of their names. Every twentieth page is for testing; the end alone would be too uniform."""
    text = "\n\n\n".join(topics[name] for name in sorted(topics))
    alphabet = "".join(sorted(set(text)))
    tokens = Text(alphabet, np.array([]), np.array([])).encoded(text)
    for_testing = np.arange(len(tokens)) // PAGE % 20 == 10
    return Text(alphabet, tokens[~for_testing], tokens[for_testing])


def windows(tokens: np.ndarray, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """[starts, length] tokens, and the token after each."""
    places = starts[:, None] + np.arange(length)
    return tokens[places], tokens[places + 1]
