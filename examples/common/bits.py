"""Bitwise comparison of two float32 arrays."""

from __future__ import annotations

import numpy as np


def differing(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The number of differing bits of each value."""
    different = first.view(np.int32) ^ second.view(np.int32)
    return np.unpackbits(different.view(np.uint8)).reshape(*different.shape, 32).sum(axis=-1)
