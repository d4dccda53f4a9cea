"""The function that stands before each operator and chooses how to call it.

torch.library's autograd alone costs several microseconds a call, even where no gradient is wanted, and knows neither
torch.func nor forward mode. So each situation takes its own way to the same kernel:

    compiling or exporting      the registered operator, which torch's compiler sees
    inside torch.func           an autograd.Function in the style that torch.func asks for
    a gradient is wanted        an autograd.Function in the old style, which is faster
    otherwise                   the bare kernel
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad

from fusedops import checks
from fusedops.declarations import Operator
from fusedops.gradients import REFUSED, Gradient, gradient_of
from fusedops.torch import neutral
from fusedops.torch.operators import SIGNATURES, Signature, overload, vmap_rule

Arguments = tuple[Any, ...]  # in the order of the schema


class Rest(tuple):
    """The arguments behind the inputs: numbers of scalar inputs, attributes. torch.func takes it as one leaf."""


_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_inside_torch_func = torch._C._are_functorch_transforms_active
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled

# What public functions see as `ops`: every operator.
FUNCTIONS = SimpleNamespace()
# What formulas see as `f`: every operator, and what else they need of tensors.
_OF_FORMULAS = SimpleNamespace(**neutral.FUNCTIONS)


def _alive(x: Any) -> Any:
    """Without the wrappers of transforms that have ended. torch itself takes off only one, and fails on the next."""
    while isinstance(x, torch.Tensor) and x is not (inner := torch._C._functorch.unwrap_if_dead(x)):
        x = inner
    return x


def _picker(places: Sequence[int]) -> Callable[[Arguments], Arguments]:
    """A function that picks the items at these places; operator.itemgetter, but always a tuple."""
    return itemgetter(*places) if len(places) > 1 else lambda values: tuple(values[i] for i in places)


class Derivative:
    """Applies an operator's gradient formula to what torch hands around.

    On small tensors a backward costs what Python does around the kernel: what can be known of an operator beforehand
    is looked up here, once.
    """

    def __init__(self, signature: Signature, gradient: Gradient) -> None:
        self.signature = signature
        self.formula = gradient.formula
        declaration = signature.declaration
        self.names = [x.name for x in declaration.inputs]
        self.all_wanted = dict.fromkeys(self.names, True)
        self.differentiable = [i for i, x in enumerate(declaration.outputs) if not x.saved]
        self.constants = [i for i, x in enumerate(declaration.outputs) if x.saved]
        tensors = [*self.names, *(x.name for x in declaration.outputs)]
        self.saved = [tensors.index(name) for name in gradient.saves]
        self.pick_saved = _picker(self.saved)
        numbers = [f"{self.names[i]}_value" for i in signature.scalars]
        attributes = [x.name for x in declaration.attributes]
        read = [*gradient.saves, *numbers, *attributes]
        self.context_type: Any = namedtuple("Context", (*read, "wanted"))  # type: ignore[misc]
        # Where the formula's scalar inputs stand, and the numbers that stand in for them.
        scalars = [(self.names[i], number) for i, number in zip(signature.scalars, numbers, strict=True)]
        self.numbers = [(read.index(x), read.index(number)) for x, number in scalars if x in gradient.saves]
        self.defaults = (*(0.0 for _ in numbers), *(x.default for x in declaration.attributes))

    def save(self, ctx: Any, inputs: Sequence[Any], rest: Arguments, outputs: Any, forward_mode: bool) -> None:
        """Keeps what the formula reads: tensors where autograd can see them, numbers and attributes beside them."""
        outputs = outputs if type(outputs) is tuple else (outputs,)
        tensors = self.pick_saved((*inputs, *outputs))
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        if self.constants:
            ctx.mark_non_differentiable(*[outputs[i] for i in self.constants])
        ctx.rest = rest
        if forward_mode:
            ctx.save_for_forward(*tensors)
            ctx.outputs = [(outputs[i].shape, outputs[i].dtype, outputs[i].device) for i in self.differentiable]

    def context(self, ctx: Any, saved: Arguments, wanted: Mapping[str, bool]) -> Any:
        """The formula's `c`."""
        values = [*saved, *ctx.rest]
        for i, number in self.numbers:
            if values[i] is None:
                values[i] = values[number]
        values.append(wanted.__getitem__)
        return tuple.__new__(self.context_type, values)  # half the time of the named tuple's own constructor

    def evaluate(self, ctx: Any, saved: Arguments, needed: Sequence[bool], dy: Arguments) -> list[Any]:
        """The gradient of every input; None where it is not needed or nothing flows."""
        if dy[0] is None and all(x is None for x in dy):
            return [None] * len(needed)
        wanted = dict(zip(self.names, needed, strict=True)) if False in needed else self.all_wanted
        gradients = self.formula(_OF_FORMULAS, self.context(ctx, saved, wanted), *dy)
        result = []
        for name, is_needed in wanted.items():
            gradient = gradients.get(name) if is_needed else None
            if gradient is REFUSED:
                raise RuntimeError(f"fusedops.{self.signature.declaration.name}: {name} has no gradient; detach it")
            result.append(gradient() if callable(gradient) else gradient)
        return result

    def register(self, operator: str) -> None:
        """Gives torch.ops' operator its backward, for the compiler and for direct calls."""
        signature = self.signature

        def setup_context(ctx: Any, inputs: Arguments, output: Any) -> None:
            ctx.given = len(inputs)
            rest = inputs[signature.inputs :]  # torch leaves trailing defaults out
            rest = (*rest, *self.defaults[len(rest) :])
            self.save(ctx, signature.padded(inputs), rest, output, forward_mode=False)

        def backward(ctx: Any, *dy: Any) -> Arguments:
            wanted = [bool(needed) for needed in signature.padded(ctx.needs_input_grad)]
            gradients = (*self.evaluate(ctx, ctx.saved_tensors, wanted, dy), *(None for _ in ctx.rest))
            return gradients[: ctx.given]

        torch.library.register_autograd(operator, backward, setup_context=setup_context)

    def backward_of_func(self, ctx: Any, *dy: Any) -> Arguments:
        saved, dy = tuple(map(_alive, ctx.saved_tensors)), tuple(map(_alive, dy))
        return (*self.evaluate(ctx, saved, ctx.needs_input_grad[:-1], dy), None)

    def jvp(self, ctx: Any, *tangents: Any) -> Any:
        """Forward mode: the formula is linear in dy, and its transpose maps tangents of inputs to those of outputs."""
        tangents = tangents[: self.signature.inputs]
        wanted = [tangent is not None for tangent in tangents]
        given = tuple(tangent for tangent in tangents if tangent is not None)
        has_tangent = [i >= len(wanted) or wanted[i] for i in self.saved]

        def pull_back(*flowing: Any) -> Arguments:
            dy = self.of_all_outputs(flowing)
            gradients = [g for g, w in zip(self.evaluate(ctx, saved, wanted, dy), wanted, strict=True) if w]
            return tuple(torch.zeros_like(t) if g is None else g for g, t in zip(gradients, given, strict=True))

        # torch turns forward mode off here, which would cut off the transforms around this one as well. Turned on, it
        # must not see the tangents of what is saved: the formula is differentiated with respect to dy alone.
        with forward_ad._set_fwd_grad_enabled(True):
            saved = tuple(
                forward_ad.unpack_dual(x).primal if has else x
                for x, has in zip(map(_alive, ctx.saved_tensors), has_tangent, strict=True)
            )
            zeros = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.outputs]
            _, transposed = torch.func.vjp(pull_back, *zeros)
            results = self.of_all_outputs(transposed(given))
        return results[0] if len(results) == 1 else results

    def of_all_outputs(self, of_differentiable: Sequence[Any]) -> Arguments:
        """With None for the saved outputs, which have neither gradient nor tangent."""
        if not self.constants:
            return tuple(of_differentiable)
        values: list[Any] = [None] * (len(self.differentiable) + len(self.constants))
        for i, value in zip(self.differentiable, of_differentiable, strict=True):
            values[i] = value
        return tuple(values)


def _autograd_functions(bare: Callable[..., Any], derivative: Derivative) -> tuple[Any, Any]:
    """What applies the two autograd.Functions over one kernel: for eager autograd, and for torch.func."""

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            *inputs, rest = arguments
            outputs = bare(*inputs, *rest)
            derivative.save(ctx, inputs, rest, outputs, forward_mode=forward_ad._current_level >= 0)
            return outputs

        @staticmethod
        def backward(ctx: Any, *dy: Any) -> Arguments:  # torch's compiled autograd takes no method of an object
            return (*derivative.evaluate(ctx, ctx.saved_tensors, ctx.needs_input_grad[:-1], dy), None)

        jvp = staticmethod(derivative.jvp)

    class Func(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Any:
            *inputs, rest = arguments
            return bare(*inputs, *rest)

        @staticmethod
        def setup_context(ctx: Any, inputs: Arguments, output: Any) -> None:
            derivative.save(ctx, inputs[:-1], inputs[-1], output, forward_mode=True)

        @staticmethod
        def vmap(info: Any, dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
            return mapped(info, dims, *arguments)

        backward = staticmethod(derivative.backward_of_func)
        jvp = staticmethod(derivative.jvp)

    # grad_fn and torch.profiler show the name of the class: TensorFlow's for the same operator, FusedopsRmsNorm.
    name = "Fusedops" + derivative.signature.declaration.name.title().replace("_", "")
    eager, func = (type(name, (function,), {}) for function in (Eager, Func))
    mapped = vmap_rule(derivative.signature, func.apply)  # type: ignore[attr-defined]
    # Past Eager.apply itself: for a microsecond it looks for transforms, as the front has done, and a setup_context.
    return super(torch.autograd.Function, eager).apply, func.apply  # type: ignore[attr-defined]


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
    attributes = [(a.name, a.default, _PLAIN.get(a.type)) for a in declaration.attributes]

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
                    # A tensor: the compiler would compile again for every value of a number.
                    dtype = torch.float64 if inputs[like].dtype == torch.float64 else torch.float32
                    number, x = 0.0, torch.scalar_tensor(number, dtype=dtype, device=inputs[like].device)
                rest.append(number)
                inputs = (*inputs[:i], x, *inputs[i + 1 :])
            elif kind == "tensor" or x is not None:
                raise checks.not_a_tensor(declaration, declared, x)
        for name, default, plain in attributes:
            value = keywords.get(name, default)
            if plain is None:
                value = floats(name, value)
            elif type(value) is not plain or (plain is int and not checks.is_integer(value)):
                checks.check_attributes(declaration, {name: value})
                value = plain(value)
            rest.append(value)
        return inputs, tuple(rest)

    return arguments


def front(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The function `name(*inputs, **attributes)` that users and layers call, and the one that formulas call."""
    signature = SIGNATURES[name]
    declaration, scalars = signature.declaration, signature.scalars
    autocast = declaration.autocast
    public, bare = overload(name), overload(f"_{name}")
    bare = getattr(bare, "_op", bare)  # without the Python method in between
    derivative = Derivative(signature, gradient_of(name))
    derivative.register(f"fusedops::{name}")
    eager, func = _autograd_functions(bare, derivative)
    arrange = _arguments(signature)

    def call(*inputs: Any, **attributes: Any) -> Any:
        tensors, rest = arrange(inputs, attributes)
        if autocast and _is_any_autocast_enabled():
            tensors = _autocast(tensors)
        if _is_compiling():
            _check_dense(declaration, tensors)
            return public(*tensors, *rest)
        try:
            if _inside_torch_func():
                return func(*tensors, Rest(rest))
            if forward_ad._current_level >= 0:
                return eager(*tensors, rest)
            if _is_grad_enabled():
                for x in tensors:
                    if x is not None and x.requires_grad:
                        return eager(*tensors, rest)
            return bare(*tensors, *rest)
        except (TypeError, RuntimeError) as error:
            _check_dense(declaration, tensors)
            _check_classes(declaration, tensors, error)
            raise

    def call_of_formula(*inputs: Any, **attributes: Any) -> Any:
        """Mostly a backward that nobody differentiates: what it passes was checked when its forward was called."""
        watched = _is_grad_enabled() or _inside_torch_func() or forward_ad._current_level >= 0 or _is_compiling()
        if not watched and not (scalars and float in map(type, inputs)):
            try:
                return bare(*inputs, **attributes)
            except (TypeError, NotImplementedError):  # `call` says it better
                pass
        return call(*inputs, **attributes)

    call.__name__ = call.__qualname__ = name
    return call, call if autocast else call_of_formula


for _name in SIGNATURES:
    _of_user, _of_formula = front(_name)
    setattr(FUNCTIONS, _name, _of_user)
    setattr(_OF_FORMULAS, _name, _of_formula)
