"""Registers the formulas of fusedops/flops.py with torch.utils.flop_counter.

That module imports Triton, which takes as long as importing fusedops, so the registration waits for its first import.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from fusedops.declarations import Operator
from fusedops.flops import FLOPS, Formula
from fusedops.torch.library import SIGNATURES, Signature, for_each

_COUNTER = "torch.utils.flop_counter"


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
        sys.modules[_COUNTER].register_flop_formula(registered)(_counted(SIGNATURES[operator.name], formula))


class _AtImport(MetaPathFinder):
    """Registers the formulas after torch's module has been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _COUNTER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_register(module: ModuleType) -> None:
            load(module)
            for_each(_register)

        spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


if _COUNTER in sys.modules:
    for_each(_register)
else:
    sys.meta_path.insert(0, _AtImport())
