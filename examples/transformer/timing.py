"""The work that is timed with fusedops and with each framework's own operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import model
import numpy as np
from common.stopwatch import Work
from data import Text, windows

BATCH = 16


def timed_work(parameters: Mapping[str, np.ndarray], text: Text) -> dict[str, Work]:
    batch = windows(text.train, np.arange(BATCH) * model.CONTEXT, model.CONTEXT)

    def character(side: Any, fo: Any, compiled: bool) -> Callable[[], Any]:
        predict = side.predictor(fo, parameters, compiled)
        return lambda: predict(batch[0][:1])

    return {
        "training step": lambda side, fo, compiled: side.step(fo, parameters, *batch, compiled),
        "one character": character,
    }
