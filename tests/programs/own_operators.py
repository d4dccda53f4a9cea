"""What tests/programs/own_torch.py and own_tf.py share: the libraries that they load, and their checks."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

from tests.helpers.own_operators import formula_of_guide, write_guide

FOLDER, DEVICE = Path(sys.argv[1]), sys.argv[2]
SQUARE = write_guide(FOLDER)
SCALED = Path(__file__).with_name("scaled.cpp")
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def run():
    """Prints the checks that failed, as JSON, with what they raised."""
    failed = {}
    for function in CHECKS:
        try:
            function()
        except Exception:
            failed[function.__name__] = traceback.format_exc()
    print(json.dumps(failed))


def of_guide():
    """The second derivative that the guide shows."""
    from collections.abc import Mapping
    from typing import Any

    formulas = {}

    def gradient(name, saves):
        return lambda formula: formulas.update({name: (formula, saves)})

    exec(formula_of_guide(), {"gradient": gradient, "Mapping": Mapping, "Any": Any, "Tensor": Any})
    return formulas


def of_scaled(f, c, dy, dcopy):
    return {"x": lambda: f.scale(dy, c.factor), "bias": dy}
