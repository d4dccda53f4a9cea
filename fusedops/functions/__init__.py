"""The public functions: one signature, one description and one body each, for every framework.

They are written over `ops`, a framework's set of operators. `make stubs` makes of them the modules that users call,
`fusedops/torch/functions.py` and `fusedops/tf/functions.py`, each with its own `ops` and types of tensors.
"""

from __future__ import annotations

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
