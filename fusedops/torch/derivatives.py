"""Evaluates an operator's derivative for torch, in reverse and forward mode.

The formulas are in `fusedops/derivatives.py` and `fusedops/gradients/`.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch

from fusedops.derivatives import FormulaNames
from fusedops.gradients import REFUSED, Gradient
from fusedops.torch import internals, neutral
from fusedops.torch.arguments import Arguments
from fusedops.torch.internals import forward_ad
from fusedops.torch.library import BUILT_IN, Signature

FORMULA_NAMES = FormulaNames(neutral.FUNCTIONS, BUILT_IN)  # operators.py adds the operators


def unwrapped(x: Any) -> Any:
    """x without the wrappers of transforms that have ended. torch removes only one wrapper, and fails on the next."""
    while isinstance(x, torch.Tensor) and x is not (inner := internals.unwrap_if_dead(x)):
        x = inner
    return x


def _picker(places: Sequence[int]) -> Callable[[Arguments], Arguments]:
    """operator.itemgetter that always returns a tuple."""
    return itemgetter(*places) if len(places) > 1 else lambda values: tuple(values[i] for i in places)


class Derivative:
    """Applies an operator's gradient formula to torch's tensors.

    On small tensors Python's overhead dominates a backward, so everything that the declaration determines is computed
    once, in the constructor.
    """

    def __init__(self, signature: Signature, gradient: Gradient) -> None:
        self.signature = signature
        self.formula = gradient.formula
        declaration = signature.declaration
        self.functions = FORMULA_NAMES.of(declaration)
        self.names = [x.name for x in declaration.inputs]
        self.all_wanted = dict.fromkeys(self.names, True)
        self.differentiable = [i for i, x in enumerate(declaration.outputs) if not x.saved]
        self.constants = [i for i, x in enumerate(declaration.outputs) if x.saved]
        tensors = [*self.names, *(x.name for x in declaration.outputs)]
        self.saved = [tensors.index(name) for name in gradient.saves]
        self.pick_saved = _picker(self.saved)
        self.is_read = self._reader(gradient)
        numbers = [f"{self.names[i]}_value" for i in signature.scalars]
        attributes = [x.name for x in declaration.attributes]
        read = [*gradient.saves, *numbers, *attributes]
        self.context_type: Any = namedtuple("Context", (*read, "wanted"))  # type: ignore[misc]
        # Positions of the scalar inputs that the formula reads, each with the position of its number.
        scalars = [(self.names[i], number) for i, number in zip(signature.scalars, numbers, strict=True)]
        self.numbers = [(read.index(x), read.index(number)) for x, number in scalars if x in gradient.saves]
        self.defaults = (*(0.0 for _ in numbers), *(x.default for x in declaration.attributes))

    def _reader(self, gradient: Gradient) -> Callable[[tuple[bool, ...]], tuple[bool, ...]] | None:
        """A function from `needs_input_grad` to flags that mark the entries of `saves` to keep; None: always all."""
        reads = gradient.reads
        if reads is None:
            return None

        @functools.cache
        def is_read(needed: tuple[bool, ...]) -> tuple[bool, ...]:
            names = reads(name for name, is_needed in zip(self.names, needed, strict=True) if is_needed)
            return tuple(name in names for name in gradient.saves)

        return is_read

    def save(self, ctx: Any, inputs: Sequence[Any], rest: Arguments, outputs: Any) -> None:
        """Saves the formula's inputs: tensors with save_for_backward, numbers and attributes on ctx."""
        outputs = outputs if type(outputs) is tuple else (outputs,)
        tensors = self.pick_saved((*inputs, *outputs))
        ctx.save_for_forward(*tensors)  # torch drops these when the call ends
        if self.is_read:
            is_read = self.is_read(ctx.needs_input_grad[:-1])
            tensors = tuple(x if needed else None for x, needed in zip(tensors, is_read, strict=True))
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        if self.constants:
            ctx.mark_non_differentiable(*[outputs[i] for i in self.constants])
        ctx.rest = rest
        ctx.outputs = [(outputs[i].shape, outputs[i].dtype) for i in self.differentiable]

    def context(self, ctx: Any, saved: Arguments, wanted: Mapping[str, bool]) -> Any:
        """The formula's argument `c`."""
        values = [*saved, *ctx.rest]
        for i, number in self.numbers:
            if values[i] is None:
                values[i] = values[number]
        values.append(wanted.__getitem__)
        return tuple.__new__(self.context_type, values)  # twice as fast as the constructor

    def evaluate(self, ctx: Any, saved: Arguments, needed: Sequence[bool], dy: Arguments) -> list[Any]:
        """The gradient of every input; None if it is not needed or no upstream gradient is defined."""
        if dy[0] is None and all(x is None for x in dy):
            return [None] * len(needed)
        wanted = dict(zip(self.names, needed, strict=True)) if False in needed else self.all_wanted
        gradients = self.formula(self.functions, self.context(ctx, saved, wanted), *dy)
        result = []
        for name, is_needed in wanted.items():
            gradient = gradients.get(name) if is_needed else None
            if gradient is REFUSED:
                raise RuntimeError(f"fusedops.{self.signature.declaration.function}: {name} has no gradient; detach it")
            result.append(gradient() if callable(gradient) else gradient)
        return result

    def jvp(self, ctx: Any, *tangents: Any) -> Any:
        """Forward mode. The formula is linear in dy; its transpose maps input tangents to output tangents."""
        tangents = tangents[: self.signature.inputs]
        wanted = [tangent is not None for tangent in tangents]
        given = tuple(tangent for tangent in tangents if tangent is not None)

        # An integer or boolean output has no tangent.
        floating = [dtype.is_floating_point for _, dtype in ctx.outputs]

        def expanded(values: Sequence[Any]) -> Arguments:
            rest = iter(values)
            return self.with_saved_outputs([next(rest) if has_tangent else None for has_tangent in floating])

        def pull_back(*flowing: Any) -> Arguments:
            dy = expanded(flowing)
            gradients = [g for g, w in zip(self.evaluate(ctx, saved, wanted, dy), wanted, strict=True) if w]
            return tuple(torch.zeros_like(t) if g is None else g for g, t in zip(gradients, given, strict=True))

        # torch turns forward mode off here, but the outer transforms need it. Saved tensors lose their tangents, since
        # the formula is differentiated with respect to dy alone.
        with internals.forward_mode(True):
            saved = tuple(
                x if x is None else forward_ad.unpack_dual(unwrapped(x), level=0).primal for x in ctx.saved_tensors
            )
            zeros = [given[0].new_zeros(shape, dtype=dtype) for shape, dtype in ctx.outputs if dtype.is_floating_point]
            results = expanded(neutral.vjp(pull_back, zeros, given))
        return results[0] if len(results) == 1 else results

    def with_saved_outputs(self, of_differentiable: Sequence[Any]) -> Arguments:
        """These values, with None for each saved output, which has neither gradient nor tangent."""
        if not self.constants:
            return tuple(of_differentiable)
        values: list[Any] = [None] * (len(self.differentiable) + len(self.constants))
        for i, value in zip(self.differentiable, of_differentiable, strict=True):
            values[i] = value
        return tuple(values)
