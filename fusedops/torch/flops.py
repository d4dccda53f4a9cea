"""The formulas of fusedops/flops.py, where torch.utils.flop_counter.FlopCounterMode looks for them."""

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
        """Of the shapes that torch gives in place of tensors."""
        shapes = dict(zip(inputs, signature.padded(arguments), strict=True))
        rest = dict(zip(attributes, signature.attributes(arguments[signature.inputs :]), strict=True))
        return formula(**(shapes | rest | keywords))

    return count


def _register(row: Operator) -> None:
    formula = FLOPS.get(row.name)
    if formula:
        operator = getattr(torch.ops.fusedops, row.name)
        register_flop_formula(operator)(_counted(SIGNATURES[row.name], formula))


for_each(_register)
