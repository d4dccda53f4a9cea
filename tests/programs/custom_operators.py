"""Code shared by tests/programs/custom_torch.py and custom_tf.py: the libraries that they load, and their checks."""

from __future__ import annotations

import inspect
import json
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusedops.gradients import registry
from tests.helpers.checking import check as check
from tests.helpers.checking import failed
from tests.helpers.custom_operators import formula_of_guide, write_guide

FOLDER, DEVICE = Path(sys.argv[1]), sys.argv[2]
SQUARE = write_guide(FOLDER)
SCALED = Path(__file__).with_name("scaled.cpp")


def run():
    """Prints the failed checks with their errors, as JSON."""
    print(json.dumps(failed()))


def declare_of_guide(gradient=registry.gradient):
    """The second derivative, as the guide declares it."""
    exec(formula_of_guide(), {"gradient": gradient, "Mapping": Mapping, "Any": Any, "Tensor": Any})


def of_guide():
    """The same as an argument of `load`."""
    formulas = {}
    declare_of_guide(lambda name, saves: lambda formula: formulas.update({name: (formula, saves)}))
    return formulas


def check_module(fo, guide, mine, signature):
    """Modules that `load` has made; `signature`: that of mine.scaled."""
    assert fo.guide is guide and "square" in dir(guide)
    assert pickle.loads(pickle.dumps(guide.square)) is guide.square
    assert str(inspect.signature(mine.scaled)) == signature, inspect.signature(mine.scaled)


def of_scaled(f, c, dy, dcopy):
    return {"x": lambda: f.scale(dy, c.factor), "bias": dy}
