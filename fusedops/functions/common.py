"""What the public functions refer to: names that each package replaces by its own, and types of their options."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

Tensor = Any
ops: Any = None  # a framework's set of operators, and renamed(): checks.py

Activation: TypeAlias = Literal["identity", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"]
Approximation: TypeAlias = Literal["none", "tanh"]
Reduction: TypeAlias = Literal["mean", "sum", "none"]
