"""The work that is timed with fusedops and with each framework's own operators."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from common.stopwatch import Work
from data import Digits

BATCH = 128
LARGE = 1 << 22  # 16 MiB of floats, larger than most caches


def timed_work(parameters: Mapping[str, np.ndarray], digits: Digits) -> dict[str, Work]:
    batch = digits.train_images[:BATCH], digits.train_labels[:BATCH]
    large = np.random.default_rng(0).normal(size=(2, LARGE)).astype(np.float32)
    return {
        "training step": lambda side, fo, compiled: side.step(fo, parameters, *batch, compiled),
        "axpby": lambda side, fo, compiled: side.axpby(fo, *large, compiled, backward=False),
        "axpby + gradients": lambda side, fo, compiled: side.axpby(fo, *large, compiled, backward=True),
    }
