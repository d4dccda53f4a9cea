"""Modules that are imported on first use."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def members(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The package's `__getattr__` for lazy members. Each is in the given module, or is that module."""

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(modules[name])
        except ImportError as error:  # `help` and completion go on to the next member after an AttributeError only
            raise AttributeError(str(error)) from error
        return module if module.__name__ == f"{package}.{name}" else getattr(module, name)

    return get


def import_with(module: str, follower: str) -> None:
    """Imports `follower` as soon as this process imports `module`, unless it lacks what `follower` imports from it."""
    if module in sys.modules:
        _import_if_possible(follower)
    else:
        sys.meta_path.insert(0, _Companion(module, follower))


def _import_if_possible(module: str) -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module(module)


class _Companion(MetaPathFinder, Loader):
    """Finds and loads a module as Python does, then imports the follower."""

    def __init__(self, module: str, follower: str) -> None:
        self.module, self.follower = module, follower
        self.found: Any = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == self.module else None
        if spec is not None and spec.loader is not None:
            self.found, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.found.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.found
        self.found.exec_module(module)
        _import_if_possible(self.follower)
