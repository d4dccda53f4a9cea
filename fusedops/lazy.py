"""Members of a package that are imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def members(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The package's `__getattr__`, for members of which each is in the module that is given, or is that module."""

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(modules[name])
        except ImportError as error:  # `help` and completion go on to the next member after an AttributeError only
            raise AttributeError(str(error)) from error
        return module if module.__name__ == f"{package}.{name}" else getattr(module, name)

    return get
