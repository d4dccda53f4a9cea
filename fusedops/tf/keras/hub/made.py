"""Counterparts of classes that differ only by name: each family of models has its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from fusedops.tf.keras.hub import MODULES, saved


def counterparts(where: str, mixin: type) -> Callable[[str], type]:
    """The `__getattr__` of the module of `hub` with this name, by which it has what `MODULES` says that it has.

    Each is a class of the mixin and of KerasHub's class. Keras finds them by these names in a saved model.
    """
    made = {}
    for place in (place for place, module in MODULES.items() if module == where):
        module, _, name = place.rpartition(".")
        try:
            base = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):  # another version of KerasHub has no such model, and no layer of it
            continue
        kind = type(name, (mixin, base), {"__module__": mixin.__module__})
        made[name] = saved(kind)

    def find(name: str) -> type:
        if name not in made:
            raise AttributeError(f"module {mixin.__module__!r} has no attribute {name!r}")
        return made[name]

    return find
