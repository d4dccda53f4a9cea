"""The public functions: one signature and one description each, for every framework.

They are written over `ops`, a framework's set of operators. `fusedops.torch` and `fusedops.tf` hold copies of these
functions which find their own `ops` (and what they call each other by), so that a user calls
`fusedops.torch.axpby(a, x, b)` or `fusedops.tf.axpby(a, x, b)`. What type checkers know of the copies is in the
`functions.pyi` of either package, which `make stubs` writes.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from fusedops.functions.activations import bias_act, gated_act, geglu, reglu, swiglu
from fusedops.functions.attention import softmax
from fusedops.functions.elementwise import add, axpby, polynomial_activation, relu, scale
from fusedops.functions.loss import cross_entropy
from fusedops.functions.normalization import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from fusedops.functions.products import matmul
from fusedops.functions.rotary import rope

PUBLIC: tuple[Any, ...] = (
    add,
    add_layer_norm,
    add_rms_norm,
    axpby,
    bias_act,
    cross_entropy,
    gated_act,
    geglu,
    layer_norm,
    matmul,
    polynomial_activation,
    reglu,
    relu,
    rms_norm,
    rope,
    scale,
    softmax,
    swiglu,
)
__all__ = [function.__name__ for function in PUBLIC]


def public(module: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """The functions, by name, as members of a package that has them from the module whose globals are given.

    A copy costs nothing at a call, unlike a wrapper, and pickles by its name in the package. Its globals are those of
    the module: the package's own `ops` and `Tensor`, the other public functions, and whatever else its original sees.
    """
    copies: dict[str, Callable[..., Any]] = {}
    for function in PUBLIC:
        for name, value in function.__globals__.items():
            module.setdefault(name, value)
        copy = FunctionType(function.__code__, module, function.__name__, function.__defaults__)
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__annotations__ = function.__annotations__
        copy.__doc__ = function.__doc__
        copy.__module__ = module["__package__"]
        copies[function.__name__] = copy
    return copies
