"""Every operator of the core as a function of torch's tensors.

An operator is called as `operator(*inputs, **attributes)`, with inputs in the order of the declaration: tensors, None
for an absent optional input, or a number for a scalar input. The function checks the types of the arguments, applies
autocast and calls `torch.ops.fusedops.<name>`. The dispatcher handles autograd and torch.func: see autograd.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch

from fusedops.declarations import Input, Operator
from fusedops.torch import autograd, autograd_library, internals, mapping, shapes  # noqa: F401  they register kernels
from fusedops.torch.arguments import argument_parser
from fusedops.torch.autocast import autocast
from fusedops.torch.calls import in_rows, spelled_out
from fusedops.torch.derivatives import FORMULA_NAMES
from fusedops.torch.errors import check_dense, explain
from fusedops.torch.library import SIGNATURES, Signature, for_each, overload

if TYPE_CHECKING:
    from fusedops.functions.operators import Operators

_is_compiling = torch.compiler.is_compiling
_is_any_autocast_enabled = internals.is_any_autocast_enabled


def _function(signature: Signature) -> Callable[..., Any]:
    declaration = signature.declaration
    cast_inputs = autocast(declaration)
    public = overload(declaration.name)
    operator = internals.in_cpp(public)
    parse = argument_parser(signature)

    def checked(*inputs: Any, **attributes: Any) -> Any:
        tensors, rest = parse(inputs, attributes)
        if cast_inputs is not None and _is_any_autocast_enabled():
            tensors = cast_inputs(tensors)
        if _is_compiling():
            check_dense(declaration, tensors)
            return public(*map(_in_rows, declaration.inputs, tensors), *rest)
        try:
            return operator(*tensors, *rest)
        except (TypeError, RuntimeError) as error:
            explain(declaration, tensors, error)
            raise

    checked.__name__ = checked.__qualname__ = declaration.name
    return spelled_out(declaration, operator, public, checked, functools.partial(explain, declaration))


def _in_rows(declared: Input, x: Any) -> Any:
    return in_rows(x) if declared.in_rows and not declared.updated else x


OPERATORS = cast("Operators", SimpleNamespace())


def _add(operator: Operator) -> None:
    function = _function(SIGNATURES[operator.name])
    setattr(OPERATORS, operator.name, function)
    FORMULA_NAMES.add(operator.name, function)


for_each(_add)
