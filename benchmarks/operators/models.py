"""Models, optimizers, and steps on several GPUs. Their baselines make the inputs themselves."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from benchmarks.operators.record import Operator

LLAMA = "llama"

LARGE_LLAMA = "llama_8x2048"
SMALL_LLAMA = "llama_12x512"
ENCODER = "encoder"
ADAMW = "adamw"
DISTRIBUTED = tuple(x.name for x in pkgutil.iter_modules([str(Path(__file__).parents[1] / "distributed")]))

OPERATORS = tuple(
    Operator(name, inputs=(), outputs={}) for name in (LLAMA, LARGE_LLAMA, SMALL_LLAMA, ENCODER, ADAMW, *DISTRIBUTED)
)
