"""What the public functions refer to: names that each package replaces by its own."""

from __future__ import annotations

from typing import Any

Tensor = Any
ops: Any = None  # a framework's set of operators, and renamed(): checks.py
