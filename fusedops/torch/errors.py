"""Better errors than torch's for tensors of kinds that the operators do not take."""

from __future__ import annotations

from typing import Any

import torch

from fusedops import checks
from fusedops.declarations import Operator
from fusedops.torch import internals

Inputs = tuple[Any, ...]


def check_dense(declaration: Operator, inputs: Inputs) -> None:
    """Raises TypeError for the kinds of tensors that torch has no kernel of ours for."""
    with internals.without_subclasses():  # a subclass need not know what a layout is
        for declared, x in zip(declaration.inputs, inputs, strict=False):
            if x is not None and (x.layout is not torch.strided or x.is_quantized or x.is_nested):
                layout = "nested" if x.layout is torch.strided else str(x.layout).removeprefix("torch.")
                kind = "a quantized tensor" if x.is_quantized else layout
                raise TypeError(f"fusedops.{declaration.name}: {declared.name} must be a dense tensor; got {kind}")


def explain(declaration: Operator, inputs: Inputs, error: Exception) -> None:
    """Raises a better error than the one that a call with these inputs raised, if there is one."""
    tensors = tuple(x if isinstance(x, torch.Tensor) else None for x in inputs)
    check_dense(declaration, tensors)
    _check_classes(declaration, tensors, error)


def _check_classes(declaration: Operator, inputs: Inputs, error: Exception) -> None:
    """Raises TypeError where `error` says that a subclass of torch.Tensor does not run the operator.

    That shows only when it is called: some subclasses run any operator.
    """
    if not isinstance(error, (TypeError, NotImplementedError)) and "DTensor" not in str(error):
        return
    for declared, x in zip(declaration.inputs, inputs, strict=False):
        if x is not None and type(x) not in (torch.Tensor, torch.nn.Parameter):
            name, kind = declared.name, type(x).__name__
            advice = f": pass {name}.to_local() or {name}.full_tensor()" if kind == "DTensor" else ""
            expected = "a torch.Tensor, or of a class that runs fused operators"
            raise TypeError(f"fusedops.{declaration.name}: {name} must be {expected}; got {kind}{advice}") from error


def renamed(error: Any, operator: str, function: str, **arguments: str) -> Any:
    """`checks.renamed`, which the compiler does not trace."""
    return error if torch.compiler.is_compiling() else checks.renamed(error, operator, function, **arguments)
