"""No operators: whole models, and optimizers over many parameters. Their contenders make the inputs themselves."""

from __future__ import annotations

from benchmarks.operators.record import Operator

LLAMA = "llama"

LARGE_LLAMA = "llama_8x2048"
SMALL_LLAMA = "llama_12x512"
ENCODER = "encoder"
ADAMW = "adamw"

OPERATORS = tuple(Operator(name, inputs=(), outputs={}) for name in (LLAMA, LARGE_LLAMA, SMALL_LLAMA, ENCODER, ADAMW))
