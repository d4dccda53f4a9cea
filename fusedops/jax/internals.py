"""Parts of JAX that are not public, gathered here to be checked against each new version."""

from __future__ import annotations

from typing import Any

from jax._src.interpreters import ad

# Tracers that record a call for a derivative.
_DIFFERENTIATING = tuple(getattr(ad, name) for name in ("JVPTracer", "LinearizeTracer") if hasattr(ad, name))


def is_differentiated(x: Any) -> bool:
    """True if a transform that is open here needs the derivative of x."""
    return isinstance(x, _DIFFERENTIATING)
