"""The public functions: one signature, one description and one body each, for every framework.

They are written over `ops`, a framework's set of operators. `make stubs` writes from them the modules that users call,
`fusedops/torch/functions.py` and `fusedops/tf/functions.py`, each with its own `ops` and types of tensors.
"""

from __future__ import annotations

from inspect import isfunction
from typing import Any

from fusedops.functions import (
    accumulation,
    activations,
    attention,
    elementwise,
    loss,
    normalization,
    own,
    products,
    rotary,
)

_FAMILIES = (accumulation, activations, attention, elementwise, loss, normalization, own, products, rotary)
PUBLIC: tuple[Any, ...] = tuple(
    sorted(
        (
            member
            for family in _FAMILIES
            for member in vars(family).values()
            if isfunction(member) and member.__module__ == family.__name__
        ),
        key=lambda function: function.__name__,
    )
)
__all__ = [function.__name__ for function in PUBLIC]
# Those that make tensors of tensors; the others make functions, or are called for their effect.
_OTHERS = {own.__name__, accumulation.__name__}
OF_TENSORS = [function.__name__ for function in PUBLIC if function.__module__ not in _OTHERS]
