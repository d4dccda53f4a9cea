"""One module per operator, each with a SPECIFICATION. A new module is found and tested by every suite."""

import importlib
import pkgutil
import re

import numpy as np

from tests.helpers import float8
from tests.helpers.elementwise import Expression
from tests.helpers.specification import Specification

SPECIFICATIONS: tuple[Specification, ...] = tuple(
    importlib.import_module(f"{__name__}.{module.name}").SPECIFICATION for module in pkgutil.iter_modules(__path__)
)

# Functions that a user would define.
EXPRESSIONS = {spec.name: spec for spec in SPECIFICATIONS if isinstance(spec, Expression)}
BUILT_IN = tuple(spec for spec in SPECIFICATIONS if spec.name not in EXPRESSIONS)

# Public function -> its signature.
SIGNATURES = {
    "accumulate_matmul": "(total, a, b, *, transpose_a=False, transpose_b=False)",
    "elementwise": "(expression, *, inputs=None, name=None)",
    **float8.SIGNATURES,
    **{
        name: signature
        for spec in BUILT_IN
        for name, signature in {spec.function: spec.signature, **spec.short_names}.items()
    },
}

# Packed operators have no dimension of rows along which a call can be divided.
WITH_ROWS = tuple(spec for spec in SPECIFICATIONS if not spec.packed)
# vmap maps their inputs without a loop: no mapped input is broadcast.
MAPPED_AT_ONCE = tuple(spec for spec in WITH_ROWS if spec in BUILT_IN or not spec.parameters)
WITH_PARAMETERS = tuple(spec for spec in SPECIFICATIONS if spec.parameters)


def scalars(spec: Specification) -> tuple[str, ...]:
    """The inputs that may be a number or a tensor of one element."""
    sample = spec.sample((2, 3), np.random.default_rng(0))
    return tuple(name for name in spec.parameters if np.ndim(sample.inputs[name]) == 0)


WITH_SCALARS = tuple(filter(scalars, SPECIFICATIONS))


def is_of_an_expression(name: str) -> bool:
    """True for the name of an expression's operator, whose digits follow from the text. Other tests add such operators,
    too."""
    return re.search(r"_[0-9a-f]{16}(_backward)*$", name) is not None
