"""The function that stands before each operator and chooses how to call it.

The registered operator `torch.ops.fusedops.<name>` is right everywhere: torch's compiler sees it whole, and its
autograd kernel knows reverse and forward mode in any nesting of torch.func. Where that kernel is in C++
(`torch_autograd/`), the front calls nothing else. It leaves what it has no derivative for, and forward mode, to the
kernel in Python (`autograd.py`), which is then that of the second name, `_<name>`.

Without it, the kernel in Python is that of the registered operator. The way through the dispatcher to it costs several
microseconds, so that in eager code the front takes a shorter one, where `_<name>` is the kernel without autograd:

    compiling, exporting or inside torch.func      the registered operator
    a gradient is wanted                           the same autograd.Function, over the bare kernel
    otherwise                                      the bare kernel
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad

from fusedops import checks
from fusedops.declarations import Operator
from fusedops.derivatives import derivative_of
from fusedops.torch import autograd_library
from fusedops.torch.autograd import OF_FORMULAS, Arguments, Derivative, autograd_functions, autograd_kernel
from fusedops.torch.calls import spelled_out
from fusedops.torch.operators import DECLARATIONS, SIGNATURES, Signature, overload

_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_inside_torch_func = torch._C._are_functorch_transforms_active
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled

_IN_CPP = autograd_library.fault is None
_LIBRARY = torch.library.Library("fusedops", "IMPL")

# What public functions see as `ops`: every operator.
FUNCTIONS = SimpleNamespace(renamed=lambda error, *names: error if _is_compiling() else checks.renamed(error, *names))


def _autocast(inputs: Arguments) -> Arguments:
    """The inputs in autocast's dtype, where it is on for their device; float64 stays, as in torch's own products."""
    device = inputs[0].device.type
    if not torch.is_autocast_enabled(device):
        return inputs
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != torch.float64 else x
        for x in inputs
    )


def _check_dense(declaration: Operator, inputs: Arguments) -> None:
    """Raises TypeError for the kinds of tensors that torch has no kernel of ours for."""
    with torch._C.DisableTorchFunctionSubclass():  # a subclass need not know what a layout is
        for declared, x in zip(declaration.inputs, inputs, strict=False):
            if x is not None and (x.layout is not torch.strided or x.is_quantized or x.is_nested):
                layout = "nested" if x.layout is torch.strided else str(x.layout).removeprefix("torch.")
                kind = "a quantized tensor" if x.is_quantized else layout
                raise TypeError(f"fusedops.{declaration.name}: {declared.name} must be a dense tensor; got {kind}")


def _check_classes(declaration: Operator, inputs: Arguments, error: Exception) -> None:
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


_PLAIN = {"float": float, "int": int, "bool": bool, "str": str}


def _arguments(signature: Signature) -> Callable[[Arguments, dict[str, Any]], tuple[Arguments, Arguments]]:
    """A function from what a user passes to the arguments of the schema: the inputs, and the rest. Checks all types."""
    declaration = signature.declaration
    kinds = [(i, declared, declared.kind) for i, declared in enumerate(declaration.inputs)]
    count, like = len(kinds), next(i for i, _, kind in kinds if kind == "tensor")
    attributes = [(a.name, a.default, _PLAIN.get(a.type), a.choices) for a in declaration.attributes]

    def floats(name: str, value: Any) -> list[float]:
        if type(value) not in (tuple, list) or any(type(number) is not float for number in value):
            checks.check_attributes(declaration, {name: value})
        return [float(number) for number in value]

    def arguments(inputs: Arguments, keywords: dict[str, Any]) -> tuple[Arguments, Arguments]:
        if len(inputs) < count:
            inputs += (None,) * (count - len(inputs))
        rest: list[Any] = []
        for i, declared, kind in kinds:
            x = inputs[i]
            if isinstance(x, torch.Tensor):
                if kind == "scalar":
                    rest.append(0.0)
            elif kind == "scalar":
                number, x = checks.number(declaration, declared, x), None
                if _is_compiling() and isinstance(inputs[like], torch.Tensor):
                    # A tensor: the compiler would compile again for every value of a number. A product, since it makes
                    # a constant of what scalar_tensor() and its like are given.
                    dtype = torch.float64 if inputs[like].dtype == torch.float64 else torch.float32
                    number, x = 0.0, number * torch.ones((), dtype=dtype, device=inputs[like].device)
                rest.append(number)
                inputs = (*inputs[:i], x, *inputs[i + 1 :])
            elif kind == "tensor" or x is not None:
                raise checks.not_a_tensor(declaration, declared, x)
        for name, default, plain, choices in attributes:
            value = keywords.get(name, default)
            if plain is None:
                value = floats(name, value)
            elif (
                type(value) is not plain
                or (choices and value not in choices)
                or (plain is int and not checks.is_integer(value))
            ):
                checks.check_attributes(declaration, {name: value})
                value = str.__str__(value) if plain is str else plain(value)  # of an enum, its value
            rest.append(value)
        return inputs, tuple(rest)

    return arguments


def front(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The function `name(*inputs, **attributes)` that users and layers call, and the one that formulas call."""
    signature = SIGNATURES[name]
    declaration, scalars = signature.declaration, signature.scalars
    autocast = declaration.autocast
    public = overload(name)
    operator, bare = (getattr(each, "_op", each) for each in (public, overload(f"_{name}")))  # no Python in between
    shortest = operator if _IN_CPP else bare
    derivative = Derivative(signature, derivative_of(DECLARATIONS, declaration))
    eager, function = autograd_functions(name, bare, derivative)
    kernel = autograd_kernel(signature, derivative.defaults, function)
    _LIBRARY.impl(f"_{name}" if _IN_CPP else name, kernel, "Autograd", with_keyset=True)
    arrange = _arguments(signature)

    def call(*inputs: Any, **attributes: Any) -> Any:
        tensors, rest = arrange(inputs, attributes)
        if autocast and _is_any_autocast_enabled():
            tensors = _autocast(tensors)
        if _is_compiling():
            _check_dense(declaration, tensors)
            return public(*tensors, *rest)
        try:
            if _IN_CPP:
                return operator(*tensors, *rest)
            if _inside_torch_func():
                return public(*tensors, *rest)
            if forward_ad._current_level >= 0:
                return eager(*tensors, rest)
            if _is_grad_enabled():
                for x in tensors:
                    if x is not None and x.requires_grad:
                        return eager(*tensors, rest)
            return bare(*tensors, *rest)
        except (TypeError, RuntimeError) as error:
            explain(tensors, error)
            raise

    def explain(inputs: Arguments, error: Exception) -> None:
        tensors = tuple(x if isinstance(x, torch.Tensor) else None for x in inputs)
        _check_dense(declaration, tensors)
        _check_classes(declaration, tensors, error)

    def call_of_formula(*inputs: Any, **attributes: Any) -> Any:
        """Mostly a backward that nobody differentiates: what it passes was checked when its forward was called."""
        plain = not _is_compiling() and not (scalars and float in map(type, inputs))
        if not _IN_CPP:
            plain = plain and not (_is_grad_enabled() or _inside_torch_func() or forward_ad._current_level >= 0)
        if plain:
            try:
                return shortest(*inputs, **attributes)
            except (TypeError, NotImplementedError):  # `call` says it better
                pass
        return call(*inputs, **attributes)

    call.__name__ = call.__qualname__ = name
    of_formulas = call if autocast else call_of_formula
    return spelled_out(declaration, operator, call, explain) if _IN_CPP else call, of_formulas


for _name in SIGNATURES:
    _of_user, _of_formula = front(_name)
    setattr(FUNCTIONS, _name, _of_user)
    setattr(OF_FORMULAS, _name, _of_formula)
