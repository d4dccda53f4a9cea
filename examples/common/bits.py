"""Comparing two arrays of float32 bit by bit."""

from __future__ import annotations

import numpy as np


def differing(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """How many of each value's 32 bits differ."""
    different = first.view(np.int32) ^ second.view(np.int32)
    return np.unpackbits(different.view(np.uint8)).reshape(*different.shape, 32).sum(axis=-1)
