"""Counterparts of classes that differ only by name: each family of models has its own."""

from __future__ import annotations

import importlib

import keras

from fusedops.tf.keras.hub import MODULES


def counterparts(where: str, mixin: type) -> dict[str, type]:
    """By name, a class of the mixin and each class of KerasHub's that `MODULES` has in a module of `hub`.

    Keras finds them by these names in a saved model.
    """
    made = {}
    for place in (place for place, module in MODULES.items() if module == where):
        module, _, name = place.rpartition(".")
        try:
            base = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):  # another version of KerasHub has no such model, and no layer of it
            continue
        kind = type(name, (mixin, base), {"__module__": mixin.__module__})
        made[name] = keras.saving.register_keras_serializable("fusedops.hub")(kind)
    return made
