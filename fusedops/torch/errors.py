"""Errors for tensor types that the operators do not support."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fusedops import checks
from fusedops.declarations import Operator
from fusedops.torch import internals

Inputs = tuple[Any, ...]


def check_dense(declaration: Operator, inputs: Inputs) -> None:
    """Raises TypeError for sparse, quantized and nested tensors, for which no kernel is registered."""
    with internals.without_subclasses():  # a subclass may not support `layout`
        for name, x in _tensors(declaration, inputs):
            if x.layout is not torch.strided or x.is_quantized or x.is_nested:
                layout = "nested" if x.layout is torch.strided else str(x.layout).removeprefix("torch.")
                kind = "a quantized tensor" if x.is_quantized else layout
                raise TypeError(f"fusedops.{declaration.function}: {name} must be a dense tensor; got {kind}")


def _tensors(declaration: Operator, inputs: Inputs) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors among the inputs, with their names."""
    for declared, x in zip(declaration.inputs, inputs, strict=False):
        for i, item in enumerate(x if isinstance(x, (list, tuple)) else [x]):
            if isinstance(item, torch.Tensor):
                yield checks.named(declared, i), item


def explain(declaration: Operator, inputs: Inputs, error: Exception) -> None:
    """Raises a more specific error for a call with these inputs that has raised `error`, if there is one."""
    check_dense(declaration, inputs)
    _check_classes(declaration, inputs, error)


def _check_classes(declaration: Operator, inputs: Inputs, error: Exception) -> None:
    """Raises TypeError if `error` comes from a subclass of torch.Tensor that does not support the operator.

    Only a call can show that: some subclasses support any operator.
    """
    tensors = [*_tensors(declaration, inputs)]
    distributed = [name for name, x in tensors if internals.is_distributed(x)]
    if distributed and "mixed torch.Tensor and DTensor" in str(error):
        for name, x in tensors:
            if not internals.is_distributed(x) and x.numel() != 1:  # DTensor accepts a tensor of one element
                placed = f"torch.distributed.tensor.distribute_tensor({name}, {distributed[0]}.device_mesh, placements)"
                raise TypeError(
                    f"fusedops.{declaration.function}: {name} must be a DTensor beside {distributed[0]}; "
                    f"got {type(x).__name__}: pass {placed}"
                ) from error
    if not isinstance(error, (TypeError, NotImplementedError)):
        return
    for name, x in tensors:
        if type(x) not in (torch.Tensor, torch.nn.Parameter):
            advice = f": pass {name}.full_tensor()" if name in distributed else ""
            expected = "a torch.Tensor, or of a class that runs fused operators"
            raise TypeError(
                f"fusedops.{declaration.function}: {name} must be {expected}; got {type(x).__name__}{advice}"
            ) from error


def renamed(error: Any, operator: str, function: str, **arguments: str) -> Any:
    """`checks.renamed`, which the compiler does not trace."""
    return error if torch.compiler.is_compiling() else checks.renamed(error, operator, function, **arguments)
