"""Arguments of constructors that have the signature of a framework's class and more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def given(names: Mapping[str, Any], *own: str) -> dict[str, Any]:
    """A constructor's arguments by name, without its `own`: `given(locals())`, before it has other variables."""
    arguments = {name: value for name, value in names.items() if name not in ("self", "__class__", "kwargs", *own)}
    return arguments | names.get("kwargs", {})
