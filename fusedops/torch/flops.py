"""Registers the formulas of fusedops/flops.py with torch.utils.flop_counter.

`fusedops.torch` imports this module with torch's, which imports Triton and takes as long as all of fusedops.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from fusedops.declarations import Operator
from fusedops.flops import FLOPS, Formula
from fusedops.torch.library import SIGNATURES, Signature, for_each


def _counted(signature: Signature, formula: Formula) -> Any:
    declaration = signature.declaration
    inputs = [x.name for x in declaration.inputs]
    attributes = [x.name for x in declaration.attributes]

    def count(*arguments: Any, out_shape: Any = None, **keywords: Any) -> int:
        # torch passes shapes in place of tensors.
        shapes = dict(zip(inputs, signature.padded(arguments), strict=True))
        rest = dict(zip(attributes, signature.attributes(arguments[signature.inputs :]), strict=True))
        return formula(**(shapes | rest | keywords))

    return count


def _register(operator: Operator) -> None:
    formula = FLOPS.get(operator.name)
    if formula:
        registered = getattr(torch.ops.fusedops, operator.name)
        register_flop_formula(registered)(_counted(SIGNATURES[operator.name], formula))


for_each(_register)
