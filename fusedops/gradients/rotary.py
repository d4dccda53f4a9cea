"""Rotary embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fusedops.gradients.registry import REFUSED, Tensor, gradient


@gradient("rope", saves=("cos", "sin"))
def _rope(f: Any, c: Any, dy: Tensor) -> Mapping[str, Any]:
    """A rotation: its transpose rotates back."""
    options = {"seq_dim": c.seq_dim, "interleaved": c.interleaved, "inverse": not c.inverse}
    return {"x": lambda: f.rope(dy, c.cos, c.sin, **options), "cos": REFUSED, "sin": REFUSED}
