"""No operators: whole models, which draw their own inputs."""

from __future__ import annotations

from benchmarks.operators.record import Operator

LLAMA = "llama"

OPERATORS = (Operator(LLAMA, inputs=(), outputs={}),)
