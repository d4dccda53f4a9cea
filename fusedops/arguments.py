"""Arguments of constructors that extend the signature of a framework's class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def given(names: Mapping[str, Any], *own: str) -> dict[str, Any]:
    """A constructor's arguments by name, without its `own`. Its first statement calls `given(locals())`."""
    arguments = {name: value for name, value in names.items() if name not in ("self", "__class__", "kwargs", *own)}
    return arguments | names.get("kwargs", {})
