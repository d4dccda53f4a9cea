"""Models, optimizers, and steps on several GPUs. Their baselines make the inputs themselves."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from benchmarks.operators.record import Operator

LLAMA = "llama"

LARGE_LLAMA = "llama_8x2048"
SMALL_LLAMA = "llama_12x512"
TINY_LLAMA = "llama_2x32"
ENCODER = "encoder"
# Models of Hugging Face whose compiled steps have been slower than before `convert`, as in audits/families.
FAMILIES = ("dinov2", "gpt2", "clip", "whisper", "opt", "gpt_oss")
ADAMW = "adamw"
DISTRIBUTED = tuple(x.name for x in pkgutil.iter_modules([str(Path(__file__).parents[1] / "distributed")]))

OPERATORS = tuple(
    Operator(name, inputs=(), outputs={})
    for name in (LLAMA, LARGE_LLAMA, SMALL_LLAMA, TINY_LLAMA, ENCODER, *FAMILIES, ADAMW, *DISTRIBUTED)
)
