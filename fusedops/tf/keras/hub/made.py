"""Counterparts of classes that differ only by name between families of models."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from fusedops.tf.keras.hub import MODULES, saved


def counterparts(where: str, mixin: type) -> Callable[[str], type]:
    """The `__getattr__` of the module `where` of `hub`. It finds the counterparts that `MODULES` places there.

    Each derives from the mixin and KerasHub's class. It has the latter's name, by which saved models refer to it.
    """
    made = {}
    for place in (place for place, module in MODULES.items() if module == where):
        module, _, name = place.rpartition(".")
        try:
            base = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):  # this version of KerasHub has no such model
            continue
        members = mixin.members(base) if hasattr(mixin, "members") else {}
        kind = type(name, (mixin, base), {"__module__": mixin.__module__, **members})
        made[name] = saved(kind)

    def find(name: str) -> type:
        if name not in made:
            raise AttributeError(f"module {mixin.__module__!r} has no attribute {name!r}")
        return made[name]

    return find
